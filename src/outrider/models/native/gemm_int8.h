/* y = x · W^T in integers. One definition for every CPU, and the same bits on all of them:
 *
 *   - BLOCK neighbouring weights of a column share a scale (bf16), and so do a row's BLOCK inputs (fp32: their largest
 *     magnitude / 127). A number is the nearest int8 within ±127 times its scale, ties to even.
 *   - A block with outliers, whose largest input exceeds OUTLIER times the row's mean magnitude, is taken in two: what
 *     rounding left of each input is an int8 too, times the scale / FINE.
 *   - A block's products are added as integers, which is exact, and each such sum is added to the total by one
 *     multiplication with the product of the two scales, fused with the addition; blocks in order, outliers' rest last.
 *
 * No step depends on other rows, on how columns are shared out, or on what an instruction does when it saturates: none
 * that can is used.
 *
 * W is packed in panels of 16 columns, four neighbouring inputs of a column together: [panel][depth/4][16][4], its scales
 * [panel][blocks][16]. Depth is padded to STEP.
 */
#ifndef OUTRIDER_GEMM_INT8_H
#define OUTRIDER_GEMM_INT8_H

#include "gemm.h"
#include "pool.h"

#define BLOCK 128
#define STEP 64
#define BLOCKS(depth) (((depth) + BLOCK - 1) / BLOCK)

/* Inputs of the block that starts at input `start`. */
INLINE int block_size(int depth, int start) { return depth - start < BLOCK ? depth - start : BLOCK; }

/* How the values of several rows lie: as the kernel that will multiply them reads them. */
typedef enum {
    BY_ROWS,  /* [rows][depth] */
    BY_FOURS, /* in groups of rows. A group's, block after block: its lines, those of all its rows and then what rounding left
                 of rows with outliers, [size of the block / 4][lines][4]. So they are all multiplied alike. */
    BY_PAIRS, /* [pairs of rows][depth / 8][2][8] */
} Order;

#define GROUP_ROWS 12 /* of a group, at most */

/* Rows of inputs. */
typedef struct {
    int8_t *values;
    float *scales;   /* [blocks][rows]; 0: nothing but zeros */
    int32_t *excess; /* BY_FOURS: [blocks][rows], -128 times the sum of the block: what is too much where weights are
                        multiplied as weight + 128 */
} Line;

typedef struct {
    Line coarse, fine; /* BY_FOURS: of a group, coarse alone, and of each block 2 * rows lines, used or not */
    uint32_t *rests;   /* BY_FOURS: of a group, [blocks]: bits of the rows with outliers */
    int depth, rows;
    int groups; /* of rows that are narrowed together */
    Order order;
} Lines;

INLINE Line line_at(Line x, int64_t value, int row) { return (Line){x.values + value, x.scales + row, x.excess + row}; }

/* Rows `row`.. of them; not BY_FOURS. */
INLINE Lines lines_at(Lines x, int row) {
    const int64_t value = (int64_t)row * x.depth - (x.order == BY_PAIRS && row % 2 ? x.depth - 8 : 0);
    x.coarse = line_at(x.coarse, value, row);
    x.fine = line_at(x.fine, value, row);
    return x;
}

/* The first row of group `group`, or of what is behind the last. */
INLINE int group_row(Lines x, int group) { return x.rows * group / x.groups; }

/* A group by itself, BY_FOURS. */
INLINE Lines group_at(Lines x, int group) {
    const int row = group_row(x, group), each = row * BLOCKS(x.depth);
    x.coarse = line_at(x.coarse, 2 * (int64_t)row * x.depth, 2 * each);
    x.rests += each;
    x.rows = group_row(x, group + 1) - row;
    return x;
}

/* In memory of LINE_BYTES(depth) a row, aligned; of an even number of rows where they are paired. `threads` narrow them. */
#define LINE_BYTES(depth) (2 * ((int64_t)(depth) + 16 * BLOCKS(depth)))
INLINE Lines lines_in(void *memory, int rows, int depth, Order order, int threads) {
    const int fewest = (rows + GROUP_ROWS - 1) / GROUP_ROWS, most = rows / 4 < threads ? rows / 4 : threads;
    const int groups = order != BY_FOURS ? rows : fewest < most ? most : fewest;
    if (order == BY_PAIRS) rows += rows % 2;
    const int64_t values = (int64_t)rows * depth, each = (int64_t)rows * BLOCKS(depth);
    int8_t *at = memory;
    float *scales = (float *)(at + 2 * values);
    int32_t *excess = (int32_t *)(scales + 2 * each);
    const Line coarse = {at, scales, excess}, fine = {at + values, scales + each, excess + each};
    return (Lines){coarse, fine, (uint32_t *)(excess + 2 * each), depth, rows, groups, order};
}

/* A panel to multiply with; the pair's other one lies behind it. `levels`: its weights are 4-bit codes for these sixteen, see
 * gemm_screen.h, and a column has one scale, not applied here; else NULL. */
typedef struct {
    const int8_t *weights;
    const uint16_t *scales;
    const int8_t *levels;
    int depth;
} Panel;

/* The one `count` further on. */
INLINE Panel panel_after(const Panel *w, int count, int coded) {
    const int64_t weights = (int64_t)w->depth * PANEL / (coded ? 2 : 1) * count;
    const int64_t scales = (int64_t)count * BLOCKS(w->depth) * PANEL;
    return (Panel){w->weights + weights, coded ? 0 : w->scales + scales, w->levels, w->depth};
}

INLINE Panel panel_of(const Matrix *w, int panel) {
    return (Panel){(const int8_t *)w->data + (int64_t)panel * w->depth * PANEL,
                   w->scales + (int64_t)panel * BLOCKS(w->depth) * PANEL, 0, w->depth};
}

/* Ask for weights well before they are needed: a head's are in no near cache after the target's pass, and its matrices
 * are too small for the CPU's own look-ahead, which starts anew in every 4 KB. */
#define EARLIER 8192

#if defined(__aarch64__)
#include "int8_neon.h"
#elif defined(WITH_AVX2)
#include "int8_x86.h"
#else
#include "int8_plain.h"
#endif

/* Whether many_int8 multiplies so many rows with the pairs of a share: what is faster then, where the CPU has it. */
#ifndef INT8_MANY_ROWS
#define MANY_ORDER BY_ROWS
INLINE int takes_many(const Model *m, int rows) { return (void)m, (void)rows, 0; }
static void many_int8(const Model *m, const Matrix *w, Lines x, int rows, Epilogue epilogue, void *y, int y_stride,
                      Share *share) {
    (void)m, (void)w, (void)x, (void)rows, (void)epilogue, (void)y, (void)y_stride, (void)share;
}
#endif

/* Lines of so many rows of inputs of a matrix, which `threads` narrow together. */
INLINE Lines product_lines(const Model *m, void *memory, const Matrix *w, int rows, int threads) {
    return lines_in(memory, rows, w->depth, w->strips ? BY_ROWS : takes_many(m, rows) ? MANY_ORDER : TILE_ORDER, threads);
}

#include "rounding.h"

#ifndef INT8_PAIRS
/* Rows against both panels of a pair, to out[r * PANEL_PAIR]. The number of rows must be a constant where they are
 * multiplied. */
#define TILE(COUNT) \
    case COUNT: tile_int8(&half, lines_at(x, r), COUNT, coded, turn, out + p * PANEL + r * PANEL_PAIR); break;
INLINE void pair_int8(const Panel *w, Lines x, int coded, float *out) {
    for (int p = 0; p < 2; p++) {
        const Panel half = panel_after(w, p, coded);
        Turn turn = turns_of(x.rows, TILE_ROWS);
        for (int r = 0, count; r < x.rows; r += count, turn.tile++) switch (count = rows_at_once(x.rows - r, TILE_ROWS)) {
                TILE(1)
                TILE(2)
                TILE(3)
                TILE(4)
#if TILE_ROWS > 4
                TILE(5)
                TILE(6)
                TILE(7)
                TILE(8)
#endif
            }
    }
}
#undef TILE
#endif

/* Whether every thread does by itself, for all rows, what is done row by row: of few rows that is less than waiting for
 * another, and where rows are narrowed in groups, which is fast, also of some more by few threads. Rows are at most
 * ALONE_ROWS, or rows * threads at most MOST_ROWS. */
INLINE int by_itself(const Model *m, int rows, int threads) {
    const int grouped = TILE_ORDER == BY_FOURS && !takes_many(m, rows);
    return rows <= ALONE_ROWS || (grouped && rows * threads <= 4 * ALONE_ROWS);
}

/* Rows of x as int8, of few by every thread for itself. Many are shared out, neighbours to one thread, whose own they are in
 * the pass, too: two would write to the same cache lines, those of the scales not least. */
static Lines narrowed(const Model *m, const Matrix *w, const float *x, int rows, int thread, int threads) {
    const int few = by_itself(m, rows, threads);
    const Lines lines = product_lines(m, m->scratch + (few ? thread * m->scratch_size : 0), w, rows, few ? 1 : threads);
    const int first = few ? 0 : lines.groups * thread / threads, last = few ? lines.groups : lines.groups * (thread + 1) / threads;
    for (int g = first; g < last; g++) narrow_group(x, 0, w->depth, w->inputs, lines, g);
    if (!few) pool_barrier();
    return lines;
}

/* The share of `thread` of `threads`. Compiled once, so that the tiles are a part of it: called, they cost 4% more. */
__attribute__((noinline)) static void pairs_int8(const Model *m, const Matrix *w, Lines lines, int rows, Epilogue epilogue,
                                                 void *y, int y_stride, int thread, int threads) {
    float block[MOST_ROWS * PANEL_PAIR] __attribute__((aligned(64)));
    Share share = pool_share(w->columns / PANEL_PAIR, thread, threads);
    if (takes_many(m, rows)) {
        many_int8(m, w, lines, rows, epilogue, y, y_stride, &share);
        return;
    }
    for (int pair; (pair = pool_next(&share)) >= 0;) {
        const Panel panel = panel_of(w, 2 * pair);
        pair_int8(&panel, lines, 0, block);
        finish(w, pair, block, rows, FP32, epilogue, m->shape.activation, y, y_stride);
    }
}

/* The same of x: fp32 rows of w->depth, at most MOST_ROWS. */
static void gemm_int8(const Model *m, const Matrix *w, const void *x, int rows, Epilogue epilogue, void *y, int y_stride,
                      int thread, int threads) {
    const Lines lines = narrowed(m, w, x, rows, thread, threads);
    pairs_int8(m, w, lines, rows, epilogue, y, y_stride, thread, threads);
}

#endif
