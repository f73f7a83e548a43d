/* Logits of a drafting head from half the bytes: all columns from 4-bit weights, the likeliest again from int8 ones.
 *
 * A 4-bit weight is one of sixteen levels times its column's scale; the levels are int8, so they are multiplied as in
 * gemm_int8.h. What is stored so is not W but W less its mean column, each input stretched to one spread: most of a
 * vocabulary matrix is what all its columns have in common, and a few inputs dwarf the others.
 *   [panel][depth/8][16][4]: as in gemm_int8.h, two groups of four inputs to a byte, the first in the low half
 *
 * Columns whose screened logit is at least the SCREENED-th largest of the pairs' largest are computed from int8, to the
 * bit what gemm_int8 gives. So whether a column is depends on the row's screened logits alone: neither on noise drawn
 * later nor on how threads share the work. All logits of few pairs are.
 */
#ifndef OUTRIDER_GEMM_SCREEN_H
#define OUTRIDER_GEMM_SCREEN_H

#include "gemm_int8.h"
#include "pool.h"

enum { SCREENED = 32 };

/* A block's sum of one column, scaled, to its total. */
INLINE float with_block(float total, const int8_t *weights, const int8_t *x, int size, float scale) {
    return fmaf((float)block_product(weights, x, size), scale, total);
}

/* One column in int8, as gemm_int8 adds it up. */
static float rescored(const Matrix *w, Lines row, int column) {
    const int8_t *weights = (const int8_t *)w->data + (int64_t)column * w->depth;
    const uint16_t *scales = w->scales + (int64_t)column * BLOCKS(w->depth);
    float total = 0.0f;
    for (int start = 0, block = 0; start < w->depth; start += BLOCK, block += row.rows) {
        const int size = block_size(w->depth, start);
        const float scale = bf16_to_float(scales[start / BLOCK]), fine = row.fine.scales[block];
        total = with_block(total, weights + start, row.coarse.values + start, size, scale * row.coarse.scales[block]);
        if (fine != 0.0f) total = with_block(total, weights + start, row.fine.values + start, size, scale * fine);
    }
    return total;
}

/* The float at a place in the order of floats, by which integers count them: -NaN, -inf, .., inf, NaN. */
INLINE float float_at(int32_t place) {
    const int32_t bits = place >= 0 ? place : place ^ 0x7fffffff;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* The SCREENED-th largest, by halving; below all of them where there are no more. */
static float threshold(const float *values, int count) {
    const int32_t infinity = 0x7f800000;
    int64_t low = -1 - (int64_t)infinity, high = infinity; /* it is neither below nor above */
    while (low < high && count > SCREENED) {
        const int64_t middle = low + (high - low + 1) / 2;
        const float least = float_at((int32_t)middle);
        int found = 0;
        for (int i = 0; i < count; i++) found += values[i] >= least;
        if (found >= SCREENED)
            low = middle;
        else
            high = middle - 1;
    }
    return float_at((int32_t)low);
}

/* x · mean, and x stretched to `out`. */
INLINE float shared_part(const Matrix *w, const float *x, float *out) {
    const Screen *s = w->screen;
    v16 total = splat(0.0f);
    for (int j = 0; j < w->inputs; j += LANES) {
        const v16 part = *(const v16 *)(x + j);
        total = total + part * *(const v16 *)(s->mean + j);
        *(v16 *)(out + j) = part * *(const v16 *)(s->stretch + j);
    }
    return sum(total);
}

/* The largest of a pair's logits that stand for tokens: `real` columns are left from its first on. */
INLINE float largest_of(v16 low, v16 high, int real) {
    const i16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const v16 never = splat(-__builtin_inff());
    return max_lane(maximum(choose(lanes < real, low, never), choose(lanes + PANEL < real, high, never)));
}

/* The share of `thread` of `threads`; at most MOST_ROWS rows. */
static void gemm_screened(const Model *m, const Matrix *w, const float *x, int rows, float *y, int y_stride, int thread,
                          int threads) {
    float block[MOST_ROWS * PANEL_PAIR] __attribute__((aligned(64))), offsets[MOST_ROWS];
    const Screen *s = w->screen;
    const int depth = w->depth, pairs = w->columns / PANEL_PAIR;
    Share share = pool_share(pairs, thread, threads);
    int8_t *own = m->scratch + thread * m->scratch_size;
    const Lines stretched = lines_in(own, rows, depth, TILE_ORDER, 1);
    const Lines plain = lines_in(own + rows * LINE_BYTES(depth), rows, depth, BY_ROWS, 1);
    float *widened = (float *)(own + 2 * rows * LINE_BYTES(depth)); /* [GROUP_ROWS, depth] */
    for (int g = 0; g < stretched.groups; g++) {
        const float *wide[GROUP_ROWS];
        for (int r = group_row(stretched, g), i = 0; r < group_row(stretched, g + 1); r++, i++) {
            const float *row = x + (int64_t)r * depth;
            offsets[r] = shared_part(w, row, widened + (int64_t)i * depth);
            wide[i] = widened + (int64_t)i * depth;
            narrow_row(row, w->inputs, lines_at(plain, r));
        }
        narrow_rows(wide, w->inputs, stretched, g);
    }
    for (int pair; (pair = pool_next(&share)) >= 0;) {
        const Panel panel = {(const int8_t *)s->codes + (int64_t)pair * depth * PANEL, 0, s->levels, depth};
        pair_int8(&panel, stretched, 1, block);
        const v16 *scales = (const v16 *)(s->scales + pair * PANEL_PAIR);
        for (int r = 0; r < rows; r++) {
            const v16 *sums = (const v16 *)(block + r * PANEL_PAIR);
            const v16 low = sums[0] * scales[0] + splat(offsets[r]), high = sums[1] * scales[1] + splat(offsets[r]);
            store(y, (int64_t)r * y_stride + pair * PANEL_PAIR, low, 0);
            store(y, (int64_t)r * y_stride + pair * PANEL_PAIR + PANEL, high, 0);
            s->largest[(int64_t)r * pairs + pair] = largest_of(low, high, s->columns - pair * PANEL_PAIR);
        }
    }
    pool_barrier();
    /* Likely tokens lie close together: the threads take turns, or one would have nearly all of them. */
    for (int r = 0; r < rows; r++) {
        const float *largest = s->largest + (int64_t)r * pairs, least = threshold(largest, pairs);
        float *logits = y + (int64_t)r * y_stride;
        for (int pair = thread; pair < pairs; pair += threads) {
            if (largest[pair] < least) continue;
            const int start = pair * PANEL_PAIR, stop = start + PANEL_PAIR < s->columns ? start + PANEL_PAIR : s->columns;
            for (int column = start; column < stop; column++)
                if (logits[column] >= least) logits[column] = rescored(w, lines_at(plain, r), column);
        }
    }
}

#endif
