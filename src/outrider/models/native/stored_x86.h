/* Products of stored.h on x86: AVX2, AVX-VNNI, AVX-512 and its VNNI. Codes are taken apart in registers, on their way to being
 * multiplied. They have no sign here, as one factor of these instructions has none, and are so small (but of 8 bits) that
 * several products with an int8 fit in 16 bits: those are added up before they are widened. */
#ifndef OUTRIDER_STORED_X86_H
#define OUTRIDER_STORED_X86_H

#if defined(WITH_AVX512)
#define CODE_ROWS 8 /* multiplied at once */
INLINE Ints down(Ints x, int bits) { return _mm512_srli_epi16(x, bits); }
INLINE Ints up(Ints x, int bits) { return _mm512_slli_epi16(x, bits); }
INLINE Ints bytes_of_all(int x) { return _mm512_set1_epi8((char)x); }
INLINE Ints pairs_of(Ints codes, Ints inputs) { return _mm512_maddubs_epi16(codes, inputs); }
INLINE Ints sum_pairs(Ints a, Ints b) { return _mm512_add_epi16(a, b); }
INLINE Ints widened(Ints pairs) { return _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)); }
INLINE Ints times_128(Ints x) { return _mm512_slli_epi32(x, 7); }
INLINE Floats of_halves(const uint8_t *from) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from)); }
INLINE Floats of_bytes(const uint8_t *from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from)));
}
#else
#define CODE_ROWS 6 /* multiplied at once */
INLINE Ints down(Ints x, int bits) { return _mm256_srli_epi16(x, bits); }
INLINE Ints up(Ints x, int bits) { return _mm256_slli_epi16(x, bits); }
INLINE Ints bytes_of_all(int x) { return _mm256_set1_epi8((char)x); }
INLINE Ints pairs_of(Ints codes, Ints inputs) { return _mm256_maddubs_epi16(codes, inputs); }
INLINE Ints sum_pairs(Ints a, Ints b) { return _mm256_add_epi16(a, b); }
INLINE Ints widened(Ints pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
INLINE Ints times_128(Ints x) { return _mm256_slli_epi32(x, 7); }
INLINE Floats of_halves(const uint8_t *from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)); }
INLINE Floats of_bytes(const uint8_t *from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from)));
}
#endif

#define MOST_APART 6 /* rows for which codes are taken apart in each tile; of more, once */

INLINE Ints kept(Ints x, int mask) { return (Ints)(x & bytes_of_all(mask)); }
INLINE Ints turned(Ints x, int mask) { return (Ints)(x ^ bytes_of_all(mask)); }

/* Computed now: left to itself, GCC adds products to one another first, and there are too few registers. */
INLINE Ints at_once(Ints x) {
    __asm__("" : "+v"(x));
    return x;
}

#define EACH_VECTOR UNROLL for (int v = 0; v < vectors; v++)
#define EACH_ROW UNROLL for (int r = 0; r < rows; r++)

/* What is not a sum of products yet. */
#if defined(DOT_PRODUCTS)
#define SIGNED_BYTES 0 /* whether codes of 8 bits have a sign */
#define FOURS_IN_16(BITS) 1
#else
#define SIGNED_BYTES 1
#define FOURS_IN_16(BITS) ((BITS) == 4 ? 8 : (BITS) == 5 ? 4 : 2) /* fours whose products fit in 16 bits */
#endif

#define OPENED 0 /* in place of bits: bytes that are codes as they are */

/* The codes of a span's `four`-th four of inputs (constant), without a sign: that bit is turned. See stored.h for which bits
 * are where. */
INLINE Ints codes_at(const uint8_t *span, int bits, int four) {
    const int fours = bits == 6 ? 4 : 8, i = four % fours, whole = bits == 5 ? 5 : 3; /* whole: fours that have bytes of their own */
    if (bits == OPENED) return ints_at(span + four * 64);
    if (bits == 8) return turned(ints_at(span + four * 64), SIGNED_BYTES ? 0 : 128);
    if (bits == 4) {
        const Ints both = turned(ints_at(span + i * 64), 0x88);
        return kept(four < 8 ? both : down(both, 4), 15);
    }
    const uint8_t *part = span + four / fours * whole * 64;
#define OF(I) ints_at(part + (I) * 64)
#define LOWER(I, BITS, MASK) kept(down(OF(I), BITS), MASK)
#define UPPER(I, BITS, MASK) up(kept(OF(I), MASK), BITS)
    Ints found;
    if (i < whole)
        found = LOWER(i, 8 - bits, (1 << bits) - 1);
    else if (bits == 6)
        found = (Ints)(UPPER(0, 4, 3) | UPPER(1, 2, 3) | LOWER(2, 0, 3));
    else if (i < 7)
        found = (Ints)(UPPER(2 * (i - 5), 2, 7) | LOWER(2 * (i - 5) + 1, 1, 3));
    else
        found = (Ints)(UPPER(4, 2, 7) | UPPER(1, 1, 1) | LOWER(3, 0, 1));
#undef OF
#undef LOWER
#undef UPPER
    return turned(found, 1 << (bits - 1));
}

/* What a part's sums begin with: codes have no sign, and those without lows a middle. */
INLINE Ints begun_part(const Inputs *x, int which, Kind k) {
    if (k.lows || (k.bits == 8 && SIGNED_BYTES)) return ints_of(0);
    return ints_of(-(1 << (k.bits - 1)) * part_sum(x, which, k.part));
}

INLINE void ask_ahead(const uint8_t *codes, int bytes) {
    enum { LINE = 64, SOON = 4096 };
    UNROLL for (int line = 0; line < bytes; line += LINE) _mm_prefetch((const char *)codes + line + SOON, _MM_HINT_T0);
}

/* A chunk's codes, taken apart once for many rows. */
INLINE void open_codes(Chunk chunk, int kind, int size, uint8_t *opened) {
    for (int start = 0; start < size; start += SPAN) {
        const uint8_t *span = chunk.spans + start / SPAN * span_bytes(kind);
        ask_ahead(span, code_bytes(kind));
        for (int lane = 0; lane < 4 * PANEL; lane += sizeof(Ints)) UNROLL for (int four = 0; four < SPAN / 4; four++) {
                const Ints codes = codes_at(span + lane, kind_of(kind).bits, four);
                memcpy(opened + start * PANEL + four * 4 * PANEL + lane, &codes, sizeof codes);
            }
    }
}

/* The products of a part, whose inputs start at input `from` of their block: its codes are those from four `first` on of what
 * lies at `at`, taken apart by `bits`. By `rows` rows and `vectors` registers of columns. All but the addresses constant. */
INLINE void part_products(const uint8_t *at, int bits, int first, Kind k, const Inputs *const *x, int from, int rows,
                          int vectors, Ints sums[][PANEL / WIDTH]) {
    const int fours = k.part / 4, together = FOURS_IN_16(k.bits);
    EACH_ROW EACH_VECTOR sums[r][v] = begun_part(x[r], from / k.part, k);
    UNROLL for (int four = 0; four < fours; four += together) {
#if !defined(DOT_PRODUCTS)
        Ints pairs[CODE_ROWS][PANEL / WIDTH];
#endif
        UNROLL for (int i = 0; i < together; i++) {
            Ints codes[PANEL / WIDTH];
            EACH_VECTOR codes[v] = codes_at(at + v * 4 * WIDTH, bits, first + four + i);
            EACH_ROW {
                const int8_t *inputs = x[r]->values + from + 4 * (four + i);
#if defined(DOT_PRODUCTS)
                if (vectors == 1) {
                    sums[r][0] = added_at(sums[r][0], codes[0], inputs);
                    continue;
                }
#endif
                const Ints in = four_of(inputs);
                EACH_VECTOR {
#if defined(DOT_PRODUCTS)
                    sums[r][v] = added(sums[r][v], codes[v], in);
#else
                    if (k.bits == 8)
                        sums[r][v] = added(sums[r][v], codes[v], in);
                    else
                        pairs[r][v] = i ? at_once(sum_pairs(pairs[r][v], pairs_of(codes[v], in))) : pairs_of(codes[v], in);
#endif
                }
            }
        }
#if !defined(DOT_PRODUCTS)
        if (k.bits != 8) EACH_ROW EACH_VECTOR sums[r][v] = sum_ints(sums[r][v], widened(pairs[r][v]));
#endif
    }
}

/* The sum of four columns of bytes, lows, times a fourth of what a block of inputs adds up to each. */
INLINE Ints four_lows(Ints lows, const int8_t *sums) {
#if defined(DOT_PRODUCTS)
    return added(ints_of(0), lows, four_of(sums));
#else
    return widened(pairs_of(lows, four_of(sums)));
#endif
}

/* Of a chunk's part `which`, from column `lane` on. */
INLINE Floats step_of(Chunk chunk, int kind, int which, int lane) {
    const Kind k = kind_of(kind);
    const int parts = SPAN / k.part;
    const uint8_t *steps = chunk.spans + which / parts * span_bytes(kind) + code_bytes(kind);
    if (k.inputs != 256) return of_halves(steps + 2 * (which % parts * PANEL + lane));
    const Floats found = of_bytes(steps + which % parts * PANEL + lane);
    return k.lows ? found : (Floats)(found - splatted(128.0f));
}

INLINE Floats small_low_of(Chunk chunk, int kind, int which, int lane) {
    const int parts = SPAN / kind_of(kind).part;
    const uint8_t *span = chunk.spans + which / parts * span_bytes(kind);
    return of_halves(span + code_bytes(kind) + 2 * ((parts + which % parts) * PANEL + lane));
}

/* Part `part` of the span that starts at input `start`, from column `lane` on. */
INLINE void add_part(Chunk chunk, int kind, const uint8_t *opened, int start, int part, int lane, const Inputs *const *x, int rows,
                     int vectors, Floats steps[][PANEL / WIDTH], Floats least[][PANEL / WIDTH]) {
    const Kind k = kind_of(kind);
    const int from = start + part * k.part, which = from / k.part, bytes = k.part * k.bits / 8 * PANEL;
    Ints sums[CODE_ROWS][PANEL / WIDTH];
    if (opened) {
        part_products(opened + from * PANEL + 4 * lane, OPENED, 0, k, x, from, rows, vectors, sums);
    } else {
        const uint8_t *codes = chunk.spans + start / SPAN * span_bytes(kind) + (k.bits == 4 ? 0 : part * bytes);
        if (lane == 0) ask_ahead(codes + (k.bits == 4 ? part * bytes : 0), bytes);
        __asm__("" : "+r"(codes)); /* what is loaded for one half of the bytes is not kept for the other */
        part_products(codes + 4 * lane, k.bits, k.bits == 4 ? part * k.part / 4 : 0, k, x, from, rows, vectors, sums);
    }
    EACH_VECTOR {
        const Floats step = step_of(chunk, kind, which, lane + v * WIDTH);
        EACH_ROW steps[r][v] = fused_floats(floats_of(sums[r][v]), step, steps[r][v]);
        if (k.lows && k.inputs != 256) {
            const Floats low = small_low_of(chunk, kind, which, lane + v * WIDTH);
            EACH_ROW least[r][v] = fused_floats(splatted((float)part_sum(x[r], which, k.part)), low, least[r][v]);
        }
    }
}

/* `rows` (constant, at most CODE_ROWS) rows of `size` inputs of a chunk of this kind (constant), row r added to
 * out[whose[r] * PANEL_PAIR]. `opened` (or a constant NULL): its codes, if they were taken apart before. */
INLINE void tile_codes(Chunk chunk, int kind, const uint8_t *opened, const Inputs *const *x, const uint8_t *whose, int size,
                       int rows, float *out) {
    const Kind k = kind_of(kind);
    const int vectors = rows == 1 ? PANEL / WIDTH : 1, parts = SPAN / k.part, large = k.inputs == 256;
    for (int lane = 0; lane < PANEL; lane += vectors * WIDTH) {
        Floats steps[CODE_ROWS][PANEL / WIDTH], least[CODE_ROWS][PANEL / WIDTH];
        EACH_ROW EACH_VECTOR steps[r][v] = least[r][v] = ZERO_FLOATS;
        for (int start = 0; start < size; start += SPAN) {
#define PART(PART) add_part(chunk, kind, opened, start, PART, lane, x, rows, vectors, steps, least)
            if (k.bits == 4 && !opened) { /* which half of a byte is whose must be a constant */
                PART(0);
                PART(1);
            } else
                for (int part = 0; part < parts; part++) PART(part);
#undef PART
        }
        EACH_VECTOR {
            const int at = lane + v * WIDTH;
            if (k.lows && large) {
                const Ints lows = ints_at(chunk.lows + 4 * at);
                EACH_ROW least[r][v] = floats_of(sum_ints(four_lows(lows, x[r]->low), times_128(four_lows(lows, x[r]->high))));
            }
            EACH_ROW {
                Floats value = steps[r][v];
                if (large) value = (Floats)(value * of_halves(chunk.scales + 2 * at));
                if (k.lows && large)
                    value = fused_floats(least[r][v], (Floats)(-of_halves(chunk.scales + 2 * (PANEL + at))), value);
                else if (k.lows)
                    value = (Floats)(value + least[r][v]);
                float *total = out + whose[r] * PANEL_PAIR + at;
                keep(total, fused_floats(value, splatted(x[r]->scale), floats_at(total)));
            }
        }
    }
}

/* All rows against a panel of this kind (constant). Of a block, outliers' rests are rows like others, behind them. */
INLINE void tiles_codes(const uint8_t *panel, int kind, const Rounded *x, int depth, float *out) {
    const Kind k = kind_of(kind);
    uint8_t opened[BLOCK * PANEL] __attribute__((aligned(64)));
    for (int start = 0, block = 0; start < depth; start += BLOCK, block++) {
        const Inputs *coarse = x->coarse + (int64_t)block * x->rows, *fine = x->fine + (int64_t)block * x->rows;
        const Chunk chunk = chunk_at(panel, kind, block);
        const int size = k.inputs == 256 ? BLOCK : block_size(depth, start);
        const Inputs *some[2 * MOST_ROWS];
        uint8_t whose[2 * MOST_ROWS];
        int rows = 0;
        for (int r = 0; r < x->rows; r++)
            if (coarse[r].scale != 0.0f) some[rows] = coarse + r, whose[rows++] = (uint8_t)r;
        for (int r = 0; r < x->rows; r++)
            if (fine[r].scale != 0.0f) some[rows] = fine + r, whose[rows++] = (uint8_t)r;
#define ROWS(COUNT, OPENED_CODES) \
    case COUNT: tile_codes(chunk, kind, OPENED_CODES, some + r, whose + r, size, COUNT, out); break;
        if (rows <= MOST_APART || k.bits == 8) {
            for (int r = 0, count; r < rows; r += count) switch (count = rows_at_once(rows - r, MOST_APART)) {
                    ROWS(1, 0)
                    ROWS(2, 0)
                    ROWS(3, 0)
                    ROWS(4, 0)
                    ROWS(5, 0)
                    ROWS(6, 0)
                }
        } else {
            open_codes(chunk, kind, size, opened);
            for (int r = 0, count; r < rows; r += count) switch (count = rows_at_once(rows - r, CODE_ROWS)) {
#if CODE_ROWS < 8 /* of seven */
                    ROWS(3, opened)
#endif
                    ROWS(4, opened)
                    ROWS(5, opened)
                    ROWS(6, opened)
#if CODE_ROWS > 6
                    ROWS(7, opened)
                    ROWS(8, opened)
#endif
                }
        }
#undef ROWS
    }
}

/* A function of its own for each kind: all in one take compilers minutes. */
#define EACH_KIND(DO)                                                                                             \
    DO(STORED_Q8_0) DO(STORED_Q4_0) DO(STORED_Q4_1) DO(STORED_Q5_0) DO(STORED_Q5_1) DO(STORED_Q4_K) DO(STORED_Q5_K) \
    DO(STORED_Q6_K)
#define ALONE(KIND)                                                                                            \
    __attribute__((noinline)) static void panel_##KIND(const uint8_t *panel, const Rounded *x, int depth, float *out) { \
        tiles_codes(panel, KIND, x, depth, out);                                                               \
    }
EACH_KIND(ALONE)
#undef ALONE

/* All rows against a panel. */
static void panel_stored(const uint8_t *panel, int kind, const Rounded *x, int depth, float *out) {
    for (int r = 0; r < x->rows; r++) *(v16 *)(out + r * PANEL_PAIR) = splat(0.0f);
#define CASE(KIND) \
    case KIND: panel_##KIND(panel, x, depth, out); break;
    switch (kind) { EACH_KIND(CASE) }
#undef CASE
}
#undef EACH_KIND

#undef EACH_VECTOR
#undef EACH_ROW

#endif
