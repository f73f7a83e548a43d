/* The tiles of gemm_int8.h on x86: AVX2, AVX-VNNI, AVX-512 and its VNNI, and AMX for many rows. */
#ifndef OUTRIDER_INT8_X86_H
#define OUTRIDER_INT8_X86_H

#if defined(WITH_VNNI) || defined(WITH_AVXVNNI)
#define DOT_PRODUCTS /* of bytes without a sign with bytes that have one */
#endif

#if defined(WITH_AVX512)
#if defined(DOT_PRODUCTS)
#define TILE_LINES 12 /* multiplied at once */
#else
#define TILE_LINES 8
#endif
#define TILE_PANELS 2
typedef __m512i Ints;
typedef __m512 Floats;
typedef int32_t Four __attribute__((may_alias, aligned(1)));
INLINE Ints ints_of(int32_t x) { return _mm512_set1_epi32(x); }
INLINE Ints ints_at(const void *from) { return _mm512_loadu_si512(from); }
INLINE Ints four_of(const int8_t *inputs) { return ints_of(*(const Four *)inputs); }
#if defined(DOT_PRODUCTS)
INLINE Ints prepared(Ints weights) { return _mm512_xor_si512(weights, _mm512_set1_epi8(-128)); } /* one factor has no sign */
/* The instruction itself: of the intrinsic GCC makes two, since it copies the sums first. */
INLINE Ints added(Ints sums, Ints weights, Ints inputs) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(inputs));
    return sums;
}
INLINE Ints added_at(Ints sums, Ints weights, const int8_t *inputs) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(weights), "m"(*(const Four *)inputs));
    return sums;
}
#else
INLINE Ints prepared(Ints weights) { return weights; }
/* The sign is moved to the other factor: two products within ±127 * 127 fit in 16 bits. */
INLINE Ints added(Ints sums, Ints weights, Ints inputs) {
    const Ints turned = _mm512_mask_sub_epi8(inputs, _mm512_movepi8_mask(weights), _mm512_setzero_si512(), inputs);
    const Ints pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(weights), turned);
    sums = _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    __asm__("" : "+v"(sums)); /* at once: else products are added to one another first, and there are too few registers */
    return sums;
}
INLINE Ints added_at(Ints sums, Ints weights, const int8_t *inputs) { return added(sums, weights, four_of(inputs)); }
#endif
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
#define TILE_LINES 4
#define TILE_PANELS 1
typedef __m256i Ints;
typedef __m256 Floats;
INLINE Ints ints_of(int32_t x) { return _mm256_set1_epi32(x); }
INLINE Ints ints_at(const void *from) { return _mm256_loadu_si256((const __m256i *)from); }
INLINE Ints four_of(const int8_t *inputs) {
    int32_t four;
    memcpy(&four, inputs, 4);
    return ints_of(four);
}
#if defined(DOT_PRODUCTS)
INLINE Ints prepared(Ints weights) { return _mm256_xor_si256(weights, _mm256_set1_epi8(-128)); }
INLINE Ints added(Ints sums, Ints weights, Ints inputs) { return _mm256_dpbusd_avx_epi32(sums, weights, inputs); }
#else
INLINE Ints prepared(Ints weights) { return weights; }
/* The sign is moved to the other factor: two products within ±127 * 127 fit in 16 bits. */
INLINE Ints added(Ints sums, Ints weights, Ints inputs) {
    const Ints pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(inputs, weights));
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    __asm__("" : "+x"(sums)); /* at once: else products are added to one another first, and there are too few registers */
    return sums;
}
#endif
INLINE Ints added_at(Ints sums, Ints weights, const int8_t *inputs) { return added(sums, weights, four_of(inputs)); }
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
#define VECTORS 2 /* registers for the columns of TILE_PANELS panels */
#define WIDTH (TILE_PANELS * PANEL / VECTORS)

/* In how many sums a line's products with a column are added up. A dot product takes as long as five begin: of few lines, each
 * would wait for the one before. */
#if defined(WITH_VNNI)
#define CHAINS(lines) ((lines) == 1 ? 4 : (lines) <= 3 ? 2 : 1)
#elif defined(WITH_AVXVNNI)
#define CHAINS(lines) ((lines) == 1 ? 2 : 1)
#else
#define CHAINS(lines) 1
#endif
#define INT8_PAIRS
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
#if defined(DOT_PRODUCTS)
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

/* Some of the lines of a block. */
typedef struct {
    const int8_t *values;
    const float *scales;
    const int32_t *excess;
    const uint8_t *rows; /* whose they are */
    int held;            /* lines of the block */
} Some;

/* Register v of the weights of four inputs, the `four`-th such from `weights` on; `levels`: prepared, what codes stand for. */
INLINE Ints weights_at(const int8_t *weights, int64_t panel, int four, int v, int coded, Ints levels) {
    const int8_t *at = weights + (coded ? four / 2 : four) * 64 + (TILE_PANELS == 2 ? v * panel : v * 4 * WIDTH);
    return coded ? decoded(levels, ints_at(at), four % 2) : prepared(ints_at(at));
}

/* What to ask for meanwhile: weights SOON to be needed, or where several tiles take turns, each its share of the same block of
 * the next panels. */
INLINE const int8_t *asked_for(const Panel *w, int64_t before, int64_t bytes, int64_t panel, Turn turn) {
    enum { SOON = 4096 };
    if (turn.tiles > 1) return w->weights + TILE_PANELS * panel + before + turn.tile * bytes / turn.tiles;
    return w->weights + before + SOON + (before + SOON < panel ? 0 : (TILE_PANELS - 1) * panel);
}

/* `lines` (constant, at most TILE_LINES) against the `size` inputs from `start` on of TILE_PANELS panels. */
INLINE void block_int8(const Panel *w, Some x, int start, int size, int lines, int coded, Turn turn, float *out) {
    enum { LINE = 64 };
    const int block = start / BLOCK, bytes = coded ? PANEL / 2 : PANEL;
    const int64_t panel = (int64_t)w->depth * bytes, before = (int64_t)start * bytes;
    const int64_t step = (LINE + turn.tiles - 1) / turn.tiles; /* bytes to ask for while a line is multiplied */
    const int8_t *next = asked_for(w, before, (int64_t)size * bytes, panel, turn);
    const Ints levels = coded ? prepared(levels_at(w->levels)) : ints_of(0);
    const int8_t *weights = w->weights + before, *in = x.values;
    const int chains = CHAINS(lines), fours = chains < 2 ? 2 : chains; /* fours of inputs taken at once */
    Ints sums[CHAINS(1)][TILE_LINES][VECTORS];
    UNROLL for (int l = 0; l < lines; l++) UNROLL for (int v = 0; v < VECTORS; v++) {
        sums[0][l][v] = begun(x.excess[l]);
        UNROLL for (int i = 1; i < chains; i++) sums[i][l][v] = ints_of(0);
    }
    for (int k = 0; k < size; k += 4 * fours, weights += 4 * fours * bytes) {
        UNROLL for (int line = 0; line < 4 * fours * bytes; line += LINE, next += step)
            UNROLL for (int p = 0; p < TILE_PANELS; p++)
                if (turn.tiles == 1)
                    _mm_prefetch((const char *)next + p * panel, _MM_HINT_T0);
                else
                    _mm_prefetch((const char *)next + p * panel, _MM_HINT_T1);
        UNROLL for (int four = 0; four < fours; four++) {
            Ints(*const of)[VECTORS] = sums[four % chains];
#if TILE_PANELS == 2 /* an input is loaded once for both */
            Ints part[VECTORS];
            UNROLL for (int v = 0; v < VECTORS; v++) part[v] = weights_at(weights, panel, four, v, coded, levels);
            UNROLL for (int l = 0; l < lines; l++) {
                const Ints inputs = four_of(in + 4 * l);
                UNROLL for (int v = 0; v < VECTORS; v++) of[l][v] = added(of[l][v], part[v], inputs);
            }
#else
            UNROLL for (int v = 0; v < VECTORS; v++) {
                const Ints part = weights_at(weights, panel, four, v, coded, levels);
                UNROLL for (int l = 0; l < lines; l++) of[l][v] = added(of[l][v], part, four_of(in + 4 * l));
            }
#endif
            in += 4 * x.held;
            __asm__("" : "+r"(in)); /* one pointer: GCC would keep one to every line's next input */
        }
    }
    UNROLL for (int v = 0; v < VECTORS; v++) {
        const Panel own = TILE_PANELS == 2 ? panel_after(w, v, coded) : *w;
        const int lane = TILE_PANELS == 2 ? 0 : v * WIDTH;
        const Floats scale = coded ? splatted(1.0f) : bf16_at(own.scales + block * PANEL + lane);
        UNROLL for (int l = 0; l < lines; l++) {
            UNROLL for (int i = 1; i < chains; i++) sums[0][l][v] = sum_ints(sums[0][l][v], sums[i][l][v]);
            add_sums(out + x.rows[l] * PANEL_PAIR + v * WIDTH, sums[0][l][v], scale, x.scales[l]);
        }
    }
}

/* All rows against both panels of a pair, to out[row * PANEL_PAIR]. */
INLINE void pair_int8(const Panel *w, Lines x, int coded, float *out) {
#define LINES(COUNT) \
    case COUNT: block_int8(&panel, some, start, size, COUNT, coded, turn, to); break;
    for (int i = 0; i < x.rows * PANEL_PAIR; i += WIDTH) keep(out + i, ZERO_FLOATS);
    for (int half = 0; half < 2; half += TILE_PANELS) {
        const Panel panel = panel_after(w, half, coded);
        float *to = out + half * PANEL;
        for (int g = 0; g < x.groups; g++) {
            const Lines group = group_at(x, g);
            const int rows = group.rows;
            const int8_t *values = group.coarse.values;
            uint8_t whose[2 * GROUP_ROWS];
            for (int r = 0; r < rows; r++) whose[r] = (uint8_t)r;
            for (int start = 0, block = 0; start < w->depth; start += BLOCK, block++) {
                const int size = block_size(w->depth, start), first = 2 * rows * block;
                int lines = rows;
                for (uint32_t of = group.rests[block]; of; of &= of - 1) whose[lines++] = (uint8_t)__builtin_ctz(of);
                Turn turn = turns_of(lines, TILE_LINES);
                turn = (Turn){g * turn.tiles, x.groups * turn.tiles};
                for (int l = 0, count; l < lines; l += count, turn.tile++) {
                    const Some some = {values + 4 * l, group.coarse.scales + first + l, group.coarse.excess + first + l,
                                       whose + l, lines};
                    switch (count = rows_at_once(lines - l, TILE_LINES)) {
                        LINES(1)
                        LINES(2)
                        LINES(3)
                        LINES(4)
#if TILE_LINES > 4
                        LINES(5)
                        LINES(6)
                        LINES(7)
                        LINES(8)
#endif
#if TILE_LINES > 8
                        LINES(9)
                        LINES(10)
                        LINES(11)
                        LINES(12)
#endif
                    }
                }
                values += size * lines;
            }
            to += rows * PANEL_PAIR;
        }
    }
#undef LINES
}

#if defined(WITH_AMX)
#include "int8_amx.h"
#endif

#endif
