/* Rows of inputs as int8, a group of them at once, laid out for the tiles of int8_x86.h: BY_FOURS of gemm_int8.h. */
#ifndef OUTRIDER_ROUNDING_X86_H
#define OUTRIDER_ROUNDING_X86_H

#include "rounding.h"

/* Sixteen inputs of four neighbouring lines of `lines`. */
INLINE void put_four_lines(int8_t *to, int lines, const b16 *values) {
    const __m128i a = (__m128i)values[0], b = (__m128i)values[1], c = (__m128i)values[2], d = (__m128i)values[3];
    const __m128i low[2] = {_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d)};
    const __m128i high[2] = {_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d)};
    _mm_storeu_si128((__m128i *)to, _mm_unpacklo_epi64(low[0], low[1]));
    _mm_storeu_si128((__m128i *)(to + 4 * lines), _mm_unpackhi_epi64(low[0], low[1]));
    _mm_storeu_si128((__m128i *)(to + 8 * lines), _mm_unpacklo_epi64(high[0], high[1]));
    _mm_storeu_si128((__m128i *)(to + 12 * lines), _mm_unpackhi_epi64(high[0], high[1]));
}

INLINE void put_one_line(int8_t *to, int lines, b16 values) {
    for (int i = 0; i < 4; i++) memcpy(to + 4 * i * lines, (const int8_t *)&values + 4 * i, 4);
}

/* `count` (constant, 1 or 4) of a block's `lines`: `filled` of `size` numbers of each of x, times its inverse, or `rest`
 * (constant), what rounding those leaves. Says what is too much of each. */
INLINE void round_lines(const float *const *x, const float *inverse, int filled, int size, int count, int rest, int lines,
                        int8_t *to, int32_t *excess) {
    HalfInts sums[4][HALVES] = {0};
    for (int j = 0; j < size; j += LANES, to += LANES * lines) {
        b16 values[4];
        UNROLL for (int r = 0; r < count; r++) {
            HalfInts found[HALVES] = {0};
            if (j < filled) UNROLL for (int h = 0; h < HALVES; h++) {
                    const Half scaled = *(const Half *)(x[r] + j + h * HALF_LANES) * inverse[r];
                    found[h] = nearest(scaled);
                    if (rest) found[h] = nearest((scaled - __builtin_convertvector(found[h], Half)) * (float)FINE);
                    sums[r][h] += found[h];
                }
            values[r] = bytes_of(found);
        }
        if (count == 4)
            put_four_lines(to, lines, values);
        else
            put_one_line(to, lines, values[0]);
    }
    UNROLL for (int r = 0; r < count; r++) excess[r] = -128 * sum_of(sums[r]);
}

/* Of a row's `inputs`: their total as total_of has it, and every block's peak, to peaks[block * step]. */
INLINE float measure_row(const float *x, int inputs, int step, float *peaks) {
    Half total[HALVES] = {0};
    for (int start = 0; start < inputs; start += BLOCK, peaks += step) {
        Half most[HALVES] = {0};
        for (int j = start; j < start + block_size(inputs, start); j += LANES)
            UNROLL for (int h = 0; h < HALVES; h++) {
                const Half magnitude = magnitude_at(x + j + h * HALF_LANES);
                total[h] = total[h] + magnitude;
                most[h] = larger(most[h], magnitude);
            }
        *peaks = max_lane(sixteen(most));
    }
    return sum(sixteen(total));
}

/* The rows of a group, each of `inputs` (a multiple of 16) numbers, zeros behind them. */
static void narrow_fours(const float *const *x, int inputs, Lines group) {
    const int rows = group.rows;
    float total[GROUP_ROWS], inverse[GROUP_ROWS];
    for (int r = 0; r < rows; r++) total[r] = measure_row(x[r], inputs, 2 * rows, group.coarse.scales + r);
    int8_t *to = group.coarse.values;
    for (int start = 0, block = 0; start < group.depth; start += BLOCK, block++) {
        const int size = block_size(group.depth, start), left = inputs - start, filled = left < size ? left : size;
        float *scales = group.coarse.scales + 2 * rows * block;
        int32_t *excess = group.coarse.excess + 2 * rows * block;
        const float *from[GROUP_ROWS];
        uint32_t rests = 0;
        for (int r = 0; r < rows; r++) {
            const float peak = left > 0 ? scales[r] : 0.0f, usual = total[r] * ((float)OUTLIER / (float)inputs);
            from[r] = x[r] + start;
            scales[r] = scale_of(peak, total[r]);
            inverse[r] = inverse_of(scales[r]);
            if (peak > usual && scales[r] != 0.0f) rests |= 1u << r;
        }
        const int lines = rows + __builtin_popcount(rests);
        int r = 0, line = rows;
        for (; r + 4 <= rows; r += 4) round_lines(from + r, inverse + r, filled, size, 4, 0, lines, to + 4 * r, excess + r);
        for (; r < rows; r++) round_lines(from + r, inverse + r, filled, size, 1, 0, lines, to + 4 * r, excess + r);
        for (uint32_t of = rests; of; of &= of - 1, line++) {
            const int row = __builtin_ctz(of);
            round_lines(from + row, inverse + row, filled, size, 1, 1, lines, to + 4 * line, excess + line);
            scales[line] = scales[row] / FINE;
        }
        group.rests[block] = rests;
        to += size * lines;
    }
}

#endif
