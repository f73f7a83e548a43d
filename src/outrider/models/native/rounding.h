/* A row of inputs as int8, as gemm_int8.h defines it and lays it out. */
#ifndef OUTRIDER_ROUNDING_H
#define OUTRIDER_ROUNDING_H

#include "gemm_int8.h"

/* Sixteen numbers in HALVES vectors: with AVX2, GCC keeps wider ones than the registers in memory. */
#if defined(WITH_AVX2) && !defined(WITH_AVX512)
#define HALVES 2
typedef float Half __attribute__((vector_size(32), aligned(4)));
typedef int32_t HalfInts __attribute__((vector_size(32), aligned(4)));
INLINE Half larger(Half a, Half b) { return (Half)_mm256_max_ps((__m256)a, (__m256)b); }
#else
#define HALVES 1
typedef v16 Half;
typedef i16 HalfInts;
INLINE Half larger(Half a, Half b) { return maximum(a, b); }
#endif
#define HALF_LANES (LANES / HALVES)

INLINE Half magnitude_at(const float *x) { return (Half)(*(const HalfInts *)x & 0x7fffffff); }

INLINE HalfInts nearest(Half x) { /* |x| < 2^22; ties to even */
#if defined(__aarch64__)
    float32x4_t from[4];
    int32x4_t to[4];
    i16 found;
    memcpy(from, &x, sizeof x);
    UNROLL for (int q = 0; q < 4; q++) to[q] = vcvtnq_s32_f32(from[q]);
    memcpy(&found, to, sizeof found);
    return found;
#else
    const Half magic = 12582912.0f - (Half){0};
    return (HalfInts)(x + magic) - (HalfInts)magic;
#endif
}

INLINE v16 sixteen(const Half *x) {
    v16 found;
    memcpy(&found, x, sizeof found);
    return found;
}

INLINE int32_t sum_of(const HalfInts *x) {
#if defined(__aarch64__)
    int32x4_t q[4];
    memcpy(q, x, sizeof q);
    return vaddvq_s32(vaddq_s32(vaddq_s32(q[0], q[1]), vaddq_s32(q[2], q[3])));
#elif defined(__x86_64__)
    __m128i q[4];
    memcpy(q, x, sizeof q);
    __m128i four = _mm_add_epi32(_mm_add_epi32(q[0], q[1]), _mm_add_epi32(q[2], q[3]));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
#else
    int32_t total = 0;
    for (int i = 0; i < LANES; i++) total += ((const int32_t *)x)[i];
    return total;
#endif
}

/* Numbers that fit in a byte. */
INLINE b16 bytes_of(const HalfInts *x) {
#if defined(WITH_AVX512)
    return (b16)_mm512_cvtepi32_epi8((__m512i)x[0]);
#elif defined(WITH_AVX2)
    const __m256i low = (__m256i)x[0], high = (__m256i)x[1];
    return (b16)_mm_packs_epi16(_mm_packs_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)),
                                _mm_packs_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)));
#elif defined(__x86_64__)
    __m128i q[4];
    memcpy(q, x, sizeof q);
    return (b16)_mm_packs_epi16(_mm_packs_epi32(q[0], q[1]), _mm_packs_epi32(q[2], q[3]));
#else
    return __builtin_convertvector(x[0], b16);
#endif
}

/* What `count` numbers add up to without their signs, lane by lane first; and the largest. */
INLINE float total_of(const float *x, int count) {
    Half total[HALVES] = {0};
    for (int j = 0; j < count; j += LANES)
        UNROLL for (int h = 0; h < HALVES; h++) total[h] = total[h] + magnitude_at(x + j + h * HALF_LANES);
    return sum(sixteen(total));
}

INLINE float peak_of(const float *x, int count) {
    Half most[HALVES] = {0};
    for (int j = 0; j < count; j += LANES)
        UNROLL for (int h = 0; h < HALVES; h++) most[h] = larger(most[h], magnitude_at(x + j + h * HALF_LANES));
    return max_lane(sixteen(most));
}

enum { OUTLIER = 20, FINE = 254 };

/* What is no number, in a row of such a total, makes every result none. */
INLINE float scale_of(float peak, float total) {
    return total <= 3e38f ? (peak > 1e-30f ? peak / 127.0f : 0.0f) : __builtin_nanf("");
}

INLINE float inverse_of(float scale) { return scale > 0.0f ? 1.0f / scale : 0.0f; }

/* Sixteen values from input `input` on of a row, not BY_FOURS. */
INLINE void put_values(int8_t *row, Order order, int input, b16 values) {
    const int8_t *from = (const int8_t *)&values;
    if (order == BY_PAIRS)
        for (int i = 0; i < 16; i += 8) memcpy(row + 2 * (input + i), from + i, 8);
    else
        *(b16 *)(row + input) = values;
}

/* A block of a row, `filled` of `size` numbers from `start` on, times `inverse`; `fine` (constant): and what rounding leaves
 * of them. */
INLINE void round_block(const float *x, int start, int filled, int size, float inverse, int fine, Lines row) {
    for (int j = 0; j < size; j += LANES) {
        HalfInts coarse[HALVES] = {0}, rest[HALVES] = {0};
        if (j < filled) UNROLL for (int h = 0; h < HALVES; h++) {
                const Half scaled = *(const Half *)(x + start + j + h * HALF_LANES) * inverse;
                coarse[h] = nearest(scaled);
                if (fine) rest[h] = nearest((scaled - __builtin_convertvector(coarse[h], Half)) * (float)FINE);
            }
        put_values(row.coarse.values, row.order, start + j, bytes_of(coarse));
        put_values(row.fine.values, row.order, start + j, bytes_of(rest));
    }
}

/* The first of `row` gets `inputs` (a multiple of 16) numbers, zeros behind them; not BY_FOURS. */
static void narrow_row(const float *x, int inputs, Lines row) {
    const float total = total_of(x, inputs), usual = total * ((float)OUTLIER / (float)inputs);
    for (int start = 0, block = 0; start < row.depth; start += BLOCK, block += row.rows) {
        const int size = block_size(row.depth, start), filled = inputs - start < size ? inputs - start : size;
        const float peak = peak_of(x + start, filled), scale = scale_of(peak, total), inverse = inverse_of(scale);
        const int fine = peak > usual;
        if (fine)
            round_block(x, start, filled, size, inverse, 1, row);
        else
            round_block(x, start, filled, size, inverse, 0, row);
        row.coarse.scales[block] = scale;
        row.fine.scales[block] = fine ? scale / FINE : 0.0f;
    }
}

#if defined(INT8_PAIRS)
#include "rounding_x86.h"
#endif

/* The rows of group `group` of `lines`. */
static void narrow_rows(const float *const *rows, int inputs, Lines lines, int group) {
#if defined(INT8_PAIRS)
    if (lines.order == BY_FOURS) {
        narrow_fours(rows, inputs, group_at(lines, group));
        return;
    }
#endif
    narrow_row(rows[0], inputs, lines_at(lines, group));
}

/* Group `group` of `lines`, which are the rows of x, `stride` apart, or of them those of `which`. */
static void narrow_group(const float *x, const int32_t *which, int64_t stride, int inputs, Lines lines, int group) {
    const float *rows[GROUP_ROWS];
    const int first = group_row(lines, group), count = group_row(lines, group + 1) - first;
    for (int r = 0; r < count; r++) rows[r] = x + (which ? which[first + r] : first + r) * stride;
    narrow_rows(rows, inputs, lines, group);
}

#endif
