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
    BY_FOURS, /* [depth / 4][rows][4]; outliers' rest by rows */
    BY_PAIRS, /* [pairs of rows][depth / 8][2][8] */
} Order;

/* Rows of inputs. */
typedef struct {
    int8_t *values;
    float *scales;   /* [blocks][rows]; 0: nothing but zeros */
    int32_t *excess; /* [blocks][rows], -128 times the sum of the block: what is too much where weights are multiplied as
                        weight + 128 */
} Line;

typedef struct {
    Line coarse, fine;
    int depth, rows;
    Order order;
} Lines;

INLINE Line line_at(Line x, int64_t value, int row) { return (Line){x.values + value, x.scales + row, x.excess + row}; }

/* Rows `row`.. of them. */
INLINE Lines lines_at(Lines x, int row) {
    const int64_t value = (int64_t)row * x.depth - (x.order == BY_PAIRS && row % 2 ? x.depth - 8 : 0);
    x.coarse = line_at(x.coarse, x.order == BY_FOURS ? 4 * row : value, row);
    x.fine = line_at(x.fine, value, row);
    return x;
}

/* In memory of LINE_BYTES(depth) a row, aligned; of an even number of rows where they are paired. */
#define LINE_BYTES(depth) (2 * ((int64_t)(depth) + 8 * BLOCKS(depth)))
INLINE Lines lines_in(void *memory, int rows, int depth, Order order) {
    if (order == BY_PAIRS) rows += rows % 2;
    const int64_t values = (int64_t)rows * depth, each = (int64_t)rows * BLOCKS(depth);
    int8_t *at = memory;
    float *scales = (float *)(at + 2 * values);
    int32_t *excess = (int32_t *)(scales + 2 * each);
    return (Lines){{at, scales, excess}, {at + values, scales + each, excess + each}, depth, rows, order};
}

/* Sixteen values from input `input` on of a row; BY_FOURS: of `rows`. */
INLINE void put_values(int8_t *row, Order order, int rows, int input, b16 values) {
    const int8_t *from = (const int8_t *)&values;
    if (order == BY_FOURS)
        for (int i = 0; i < 16; i += 4) memcpy(row + (int64_t)(input + i) * rows, from + i, 4);
    else if (order == BY_PAIRS)
        for (int i = 0; i < 16; i += 8) memcpy(row + 2 * (input + i), from + i, 8);
    else
        *(b16 *)(row + input) = values;
}

/* A panel to multiply with. `levels`: its weights are 4-bit codes for these sixteen, see gemm_screen.h, and a column has
 * one scale, not applied here; else NULL. */
typedef struct {
    const int8_t *weights;
    const uint16_t *scales;
    const int8_t *levels;
    int depth;
} Panel;

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

/* Whether many_int8 multiplies so many rows: what is faster then, where the CPU has it. */
#ifndef INT8_MANY_ROWS
#define MANY_ORDER BY_ROWS
INLINE int takes_many(const Model *m, int rows) { return (void)m, (void)rows, 0; }
static void begin_many_int8(int rows) { (void)rows; }
static void many_int8(const Panel *w, Lines x, int rows, float *out) { (void)w, (void)x, (void)rows, (void)out; }
#endif

/* Lines of so many rows of inputs of a matrix. */
INLINE Lines product_lines(const Model *m, void *memory, const Matrix *w, int rows) {
    return lines_in(memory, rows, w->depth, w->strips ? BY_ROWS : takes_many(m, rows) ? MANY_ORDER : TILE_ORDER);
}

#include "rounding.h"

/* Some rows against one panel, to out[r * PANEL_PAIR]. The number of rows must be a constant where they are multiplied. */
#define TILE(COUNT) \
    case COUNT: tile_int8(w, lines_at(x, r), COUNT, coded, turn, out + r * PANEL_PAIR); break;
INLINE void tiles_int8(const Panel *w, Lines x, int rows, int coded, float *out) {
    Turn turn = turns_of(rows, TILE_ROWS);
    for (int r = 0, count; r < rows; r += count, turn.tile++) switch (count = rows_at_once(rows - r, TILE_ROWS)) {
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
#if TILE_ROWS > 8
            TILE(9)
            TILE(10)
            TILE(11)
            TILE(12)
            TILE(13)
            TILE(14)
            TILE(15)
            TILE(16)
#endif
        }
}

INLINE Panel panel_of(const Matrix *w, int panel) {
    return (Panel){(const int8_t *)w->data + (int64_t)panel * w->depth * PANEL,
                   w->scales + (int64_t)panel * BLOCKS(w->depth) * PANEL, 0, w->depth};
}

/* Rows of x as int8. Few are narrowed by every thread for itself: that is little work, and less than waiting for
 * another. Many are shared out. */
static Lines narrowed(const Model *m, const Matrix *w, const float *x, int rows, int thread, int threads) {
    const int few = rows <= ALONE_ROWS;
    const Lines lines = product_lines(m, m->scratch + (few ? thread * m->scratch_size : 0), w, rows);
    for (int r = few ? 0 : thread; r < rows; r += few ? 1 : threads)
        narrow_row(x + (int64_t)r * w->depth, w->inputs, lines_at(lines, r));
    if (!few) pool_barrier();
    return lines;
}

/* The share of `thread` of `threads`. Compiled once, so that the tiles are a part of it: called, they cost 4% more. */
__attribute__((noinline)) static void pairs_int8(const Model *m, const Matrix *w, Lines lines, int rows, Epilogue epilogue,
                                                 void *y, int y_stride, int thread, int threads) {
    float block[MOST_ROWS * PANEL_PAIR] __attribute__((aligned(64)));
    Share share = pool_share(w->columns / PANEL_PAIR, thread, threads);
    const int many = takes_many(m, rows);
    if (many) begin_many_int8(rows);
    for (int pair; (pair = pool_next(&share)) >= 0;) {
        for (int half = 0; half < 2; half++) {
            const Panel panel = panel_of(w, 2 * pair + half);
            if (many)
                many_int8(&panel, lines, rows, block + half * PANEL);
            else
                tiles_int8(&panel, lines, rows, 0, block + half * PANEL);
        }
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
