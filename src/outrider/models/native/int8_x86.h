/* The tiles of gemm_int8.h on x86: AVX2, AVX-VNNI, VNNI of AVX-512, and AMX for many rows. */
#ifndef OUTRIDER_INT8_X86_H
#define OUTRIDER_INT8_X86_H

#if defined(WITH_VNNI)
#define TILE_ROWS 16
#define VECTORS 1 /* registers of a panel's columns */
typedef __m512i Ints;
typedef __m512 Floats;
typedef int32_t Four __attribute__((may_alias, aligned(1)));
INLINE Ints ints_of(int32_t x) { return _mm512_set1_epi32(x); }
INLINE Ints ints_at(const void *from) { return _mm512_loadu_si512(from); }
INLINE Ints prepared(Ints weights) { return _mm512_xor_si512(weights, _mm512_set1_epi8(-128)); } /* one factor has no sign */
/* The instruction itself: of the intrinsic GCC makes three, since it copies the sums and loads the inputs first. */
INLINE Ints added(Ints sums, Ints weights, const int8_t *inputs) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(weights), "m"(*(const Four *)inputs));
    return sums;
}
INLINE Ints decoded(Ints levels, Ints both, int high) {
    if (high) both = _mm512_srli_epi16(both, 4);
    return _mm512_shuffle_epi8(levels, _mm512_and_si512(both, _mm512_set1_epi8(15)));
}
INLINE Ints levels_at(const int8_t *from) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)from)); }
INLINE Ints sum_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
INLINE Floats floats_of(Ints x) { return _mm512_cvtepi32_ps(x); }
INLINE Floats floats_at(const float *from) { return _mm512_loadu_ps(from); }
INLINE void keep(float *to, Floats x) { _mm512_storeu_ps(to, x); }
INLINE Floats bf16_at(const uint16_t *from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from)), 16));
}
INLINE Floats splatted(float x) { return _mm512_set1_ps(x); }
INLINE Floats fused_floats(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
#define ZERO_FLOATS _mm512_setzero_ps()
#else
#define TILE_ROWS 4
#define VECTORS 2
typedef __m256i Ints;
typedef __m256 Floats;
INLINE Ints ints_of(int32_t x) { return _mm256_set1_epi32(x); }
INLINE Ints ints_at(const void *from) { return _mm256_loadu_si256((const __m256i *)from); }
INLINE Ints four_of(const int8_t *inputs) {
    int32_t four;
    memcpy(&four, inputs, 4);
    return ints_of(four);
}
#if defined(WITH_AVXVNNI)
INLINE Ints prepared(Ints weights) { return _mm256_xor_si256(weights, _mm256_set1_epi8(-128)); }
INLINE Ints added(Ints sums, Ints weights, const int8_t *inputs) {
    return _mm256_dpbusd_avx_epi32(sums, weights, four_of(inputs));
}
#else
INLINE Ints prepared(Ints weights) { return weights; }
/* The sign is moved to the other factor: two products within ±127 * 127 fit in 16 bits. */
INLINE Ints added(Ints sums, Ints weights, const int8_t *inputs) {
    const Ints pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(four_of(inputs), weights));
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    __asm__("" : "+x"(sums)); /* at once: else products are added to one another first, and there are too few registers */
    return sums;
}
#endif
INLINE Ints decoded(Ints levels, Ints both, int high) {
    if (high) both = _mm256_srli_epi16(both, 4);
    return _mm256_shuffle_epi8(levels, _mm256_and_si256(both, _mm256_set1_epi8(15)));
}
INLINE Ints levels_at(const int8_t *from) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)from)); }
INLINE Ints sum_ints(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
INLINE Floats floats_of(Ints x) { return _mm256_cvtepi32_ps(x); }
INLINE Floats floats_at(const float *from) { return _mm256_loadu_ps(from); }
INLINE void keep(float *to, Floats x) { _mm256_storeu_ps(to, x); }
INLINE Floats bf16_at(const uint16_t *from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)), 16));
}
INLINE Floats splatted(float x) { return _mm256_set1_ps(x); }
INLINE Floats fused_floats(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
#define ZERO_FLOATS _mm256_setzero_ps()
#endif
#define WIDTH (PANEL / VECTORS)

/* In how many sums a row's products with a column are added up. A dot product takes as long as five begin: of few rows, each
 * would wait for the one before. */
#if defined(WITH_VNNI)
#define CHAINS(rows) ((rows) == 1 ? 4 : (rows) <= 3 ? 2 : 1)
#elif defined(WITH_AVXVNNI)
#define CHAINS(rows) ((rows) == 1 ? 2 : 1)
#else
#define CHAINS(rows) 1
#endif
#define TILE_ORDER BY_FOURS

/* Of `size` weights with as many inputs. */
INLINE int32_t block_product(const int8_t *a, const int8_t *b, int size) {
    __m256i sums = _mm256_setzero_si256();
    for (int i = 0; i < size; i += 16)
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(a + i))),
                                                        _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(b + i)))));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

/* What a block's sums begin with. */
INLINE Ints begun(int32_t excess) {
#if defined(WITH_VNNI) || defined(WITH_AVXVNNI)
    return ints_of(excess);
#else
    (void)excess;
    return ints_of(0);
#endif
}

/* total += sums * scale of the column * scale of the row, the last multiplication fused with the addition. */
INLINE void add_sums(float *total, Ints sums, Floats scale, float unit) {
    keep(total, fused_floats(floats_of(sums), scale * splatted(unit), floats_at(total)));
}

/* Register v of the weights of four inputs, the `four`-th such from `weights` on; `levels`: prepared, what codes stand for. */
INLINE Ints weights_at(const int8_t *weights, int four, int v, int coded, Ints levels) {
    const int8_t *at = weights + (coded ? four / 2 : four) * 64 + v * 4 * WIDTH;
    return coded ? decoded(levels, ints_at(at), four % 2) : prepared(ints_at(at));
}

/* A block of `rows` (constant) rows of the `held` there are, `size` inputs of them. Meanwhile it asks for weights further on,
 * SOON to be needed; where rows are taken in several tiles, each for its share of the next panel. */
INLINE void block_int8(const Panel *w, Line x, int held, int start, int size, int rows, int coded, Turn turn, float *out) {
    enum { LINE = 64, SOON = 4096 };
    const int block = start / BLOCK, bytes = coded ? PANEL / 2 : PANEL;
    const int64_t panel = (int64_t)w->depth * bytes, before = (int64_t)start * bytes;
    const int64_t step = (LINE + turn.tiles - 1) / turn.tiles; /* bytes to ask for while a line is multiplied */
    const int8_t *next = w->weights + (turn.tiles == 1 ? before + SOON : panel + (turn.tile * panel + before) / LINE * step);
    const float *units = x.scales + (int64_t)block * held;
    const int32_t *excess = x.excess + (int64_t)block * held;
    const Ints levels = coded ? prepared(levels_at(w->levels)) : ints_of(0);
    const int8_t *weights = w->weights + (int64_t)start * bytes, *in = x.values + (int64_t)start * held;
    const int chains = CHAINS(rows), fours = chains < 2 ? 2 : chains; /* fours of inputs taken at once */
    Ints sums[CHAINS(1)][TILE_ROWS][VECTORS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < VECTORS; v++) {
        sums[0][r][v] = begun(excess[r]);
        UNROLL for (int i = 1; i < chains; i++) sums[i][r][v] = ints_of(0);
    }
    for (int k = 0; k < size; k += 4 * fours, weights += 4 * fours * bytes) {
        UNROLL for (int line = 0; line < 4 * fours * bytes; line += LINE, next += step)
            if (turn.tiles == 1)
                _mm_prefetch((const char *)next, _MM_HINT_T0);
            else
                _mm_prefetch((const char *)next, _MM_HINT_T1);
        UNROLL for (int four = 0; four < fours; four++) {
            Ints(*const of)[VECTORS] = sums[four % chains];
            UNROLL for (int v = 0; v < VECTORS; v++) {
                const Ints part = weights_at(weights, four, v, coded, levels);
                UNROLL for (int r = 0; r < rows; r++) of[r][v] = added(of[r][v], part, in + 4 * r);
            }
            in += 4 * held;
            __asm__("" : "+r"(in)); /* one pointer: GCC would keep one to every row's next input */
        }
    }
    UNROLL for (int v = 0; v < VECTORS; v++) {
        const Floats scale = coded ? splatted(1.0f) : bf16_at(w->scales + block * PANEL + v * WIDTH);
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int i = 1; i < chains; i++) sums[0][r][v] = sum_ints(sums[0][r][v], sums[i][r][v]);
            add_sums(out + r * PANEL_PAIR + v * WIDTH, sums[0][r][v], scale, units[r]);
        }
    }
}

/* What rounding left of a block of one row with outliers: few have any. */
__attribute__((noinline)) static void rest_int8(const Panel *w, const int8_t *in, float unit, int32_t excess, int start, int size,
                                                int coded, float *out) {
    enum { FOURS = 4 }; /* sums that need not wait for one another */
    const int block = start / BLOCK, bytes = coded ? PANEL / 2 : PANEL;
    const Ints levels = coded ? prepared(levels_at(w->levels)) : ints_of(0);
    const int8_t *weights = w->weights + (int64_t)start * bytes;
    UNROLL for (int v = 0; v < VECTORS; v++) {
        Ints sums[FOURS];
        UNROLL for (int i = 0; i < FOURS; i++) sums[i] = i ? ints_of(0) : begun(excess);
        for (int k = 0; k < size; k += 4 * FOURS) UNROLL for (int i = 0; i < FOURS; i++)
            sums[i] = added(sums[i], weights_at(weights + (int64_t)k * bytes, i, v, coded, levels), in + k + 4 * i);
        const Floats scale = coded ? splatted(1.0f) : bf16_at(w->scales + block * PANEL + v * WIDTH);
        add_sums(out + v * WIDTH, sum_ints(sum_ints(sums[0], sums[1]), sum_ints(sums[2], sums[3])), scale, unit);
    }
}

/* `rows` (constant, at most TILE_ROWS) rows against a panel. */
INLINE void tile_int8(const Panel *w, Lines x, int rows, int coded, Turn turn, float *out) {
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < VECTORS; v++)
        keep(out + r * PANEL_PAIR + v * WIDTH, ZERO_FLOATS);
    for (int start = 0, block = 0; start < w->depth; start += BLOCK, block++) {
        const int size = block_size(w->depth, start);
        block_int8(w, x.coarse, x.rows, start, size, rows, coded, turn, out);
        for (int r = 0, at = block * x.rows; r < rows; r++, at++)
            if (x.fine.scales[at] != 0.0f)
                rest_int8(w, x.fine.values + (int64_t)r * x.depth + start, x.fine.scales[at], x.fine.excess[at], start, size,
                          coded, out + r * PANEL_PAIR);
    }
}

#ifdef WITH_AMX
#define INT8_MANY_ROWS
#define MANY_ORDER BY_ROWS
INLINE int takes_many(const Model *m, int rows) { return m->shape.kernels == KERNELS_AMX && rows > 8; }
#define TILES_INT8 ALSO("amx-tile,amx-int8")

/* Tile 0 sums a block of sixteen rows, 4 holds their inputs, 6 the weights. */
TILES_INT8 static void configure_int8(int rows) {
    const uint8_t top = rows < ROW_TILE ? (uint8_t)rows : ROW_TILE;
    volatile TileConfig config = {
        .palette = 1,
        .bytes_per_row = {64, 64, 0, 0, STEP, STEP, 64, 64},
        .rows = {top, top, 0, 0, top, top, STEP / 4, STEP / 4},
    };
    _tile_loadconfig((const void *)&config);
}

TILES_INT8 INLINE void block_tiles(const Panel *w, Line x, int depth, int held, int start, int size, int rows, float *out) {
    int32_t sums[ROW_TILE * PANEL] __attribute__((aligned(64)));
    const int block = start / BLOCK;
    _tile_zero(0);
    for (int k = start; k < start + size; k += STEP) {
        const char *weights = (const char *)w->weights + k * PANEL;
        for (int line = 0; line < STEP * PANEL; line += 64) _mm_prefetch(weights + EARLIER + line, _MM_HINT_T1);
        _tile_loadd(4, x.values + k, depth);
        _tile_loadd(6, weights, 64);
        _tile_dpbssd(0, 4, 6);
    }
    _tile_stored(0, sums, 64);
    const Floats scale = bf16_at(w->scales + block * PANEL);
    for (int r = 0; r < rows; r++)
        add_sums(out + r * PANEL_PAIR, ints_at(sums + r * PANEL), scale, x.scales[block * held + r]);
}

/* Whether a block of any of these rows is taken in two. */
INLINE int any_fine(Lines x, int block, int rows) {
    int fine = 0;
    for (int r = 0; r < rows; r++) fine |= x.fine.scales[block * x.rows + r] != 0.0f;
    return fine;
}

static void begin_many_int8(int rows) { configure_int8(rows); }

/* Rows padded to ROW_TILE must be readable. */
TILES_INT8 static void many_int8(const Panel *w, Lines x, int rows, float *out) {
    const int uneven = rows > ROW_TILE && rows % ROW_TILE;
    for (int r = 0; r < rows; r += ROW_TILE, out += ROW_TILE * PANEL_PAIR) {
        const int count = rows - r < ROW_TILE ? rows - r : ROW_TILE;
        const Lines some = lines_at(x, r);
        if (uneven && (r == 0 || count < ROW_TILE)) configure_int8(count);
        for (int i = 0; i < count; i++) keep(out + i * PANEL_PAIR, ZERO_FLOATS);
        for (int start = 0, block = 0; start < w->depth; start += BLOCK, block++) {
            const int size = block_size(w->depth, start);
            block_tiles(w, some.coarse, x.depth, x.rows, start, size, count, out);
            if (any_fine(some, block, count)) block_tiles(w, some.fine, x.depth, x.rows, start, size, count, out);
        }
    }
}
#endif

#endif
