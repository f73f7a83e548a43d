/* The tile of gemm_int8.h with i8mm: an instruction multiplies eight inputs of two rows with those of two columns, so that a
 * pair of rows takes as many as a row does with dot products. Sums are integers, and folded as everywhere: the same bits.
 *
 * Rows lie in pairs (see Lines); the weights of two columns are put together as they are read, which pays from four rows on.
 */
#ifndef OUTRIDER_INT8_I8MM_H
#define OUTRIDER_INT8_I8MM_H

#include <arm_neon.h>

#define MOST_PAIRS 5 /* of rows at once: with eight columns, their sums take 20 registers */

#define SMMLA(SUMS, ROWS, COLUMNS) \
    __asm__("smmla %0.4s, %1.16b, %2.16b" : "+w"(SUMS) : "w"(ROWS), "w"(COLUMNS))

/* Sums of `size` inputs with 4 * quads columns from `column` on, as floats, to sums[2 * pairs][16]. `pairs` and `quads` are
 * constants. Sums are counted in the last bits of a float, as in int8_neon.h. */
INLINE void paired_sums(const int8_t *weights, const int8_t *x, int depth, int size, int pairs, int column, int quads,
                        float *sums) {
    const int32x4_t counted = vdupq_n_s32(0x4b400000);
    int32x4_t found[MOST_PAIRS][2 * QUADS]; /* [pair of rows][pair of columns]: first row's two, second row's two */
    UNROLL for (int p = 0; p < pairs; p++) UNROLL for (int c = 0; c < 2 * quads; c++) found[p][c] = counted;
    weights += 4 * column;
    for (int i = 0; i < size; i += 8, weights += 8 * PANEL) {
        int32x4_t columns[2 * QUADS];
        __builtin_prefetch(weights + 1024);
        __builtin_prefetch(weights + 1024 + 64);
        UNROLL for (int q = 0; q < quads; q++) {
            const int32x4_t first = vld1q_s32((const int32_t *)(weights + 16 * q));
            const int32x4_t second = vld1q_s32((const int32_t *)(weights + 16 * q + 4 * PANEL));
            columns[2 * q] = vzip1q_s32(first, second);
            columns[2 * q + 1] = vzip2q_s32(first, second);
        }
        UNROLL for (int p = 0; p < pairs; p++) {
            const int8x16_t rows = vld1q_s8(x + 2 * ((int64_t)p * depth + i));
            UNROLL for (int c = 0; c < 2 * quads; c++) SMMLA(found[p][c], rows, columns[c]);
        }
    }
    UNROLL for (int p = 0; p < pairs; p++) UNROLL for (int q = 0; q < quads; q++) {
        const float32x4_t magic = vreinterpretq_f32_s32(counted);
        const float32x4_t left = vsubq_f32(vreinterpretq_f32_s32(found[p][2 * q]), magic);
        const float32x4_t right = vsubq_f32(vreinterpretq_f32_s32(found[p][2 * q + 1]), magic);
        float *to = sums + 2 * p * PANEL + column + 4 * q;
        vst1q_f32(to, vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(left), vreinterpretq_f64_f32(right))));
        vst1q_f32(to + PANEL, vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(left), vreinterpretq_f64_f32(right))));
    }
}

/* `pairs` (constant) pairs of rows against a panel; `rows` of them are given. */
INLINE void tile_paired(const Panel *w, Lines x, int pairs, int rows, float *out) {
    float sums[2 * MOST_PAIRS * PANEL] __attribute__((aligned(64)));
    for (int r = 0; r < rows; r++) UNROLL for (int q = 0; q < QUADS; q++)
        vst1q_f32(out + r * PANEL_PAIR + 4 * q, vdupq_n_f32(0.0f));
    for (int start = 0, block = 0; start < w->depth; start += BLOCK, block++) {
        const int size = block_size(w->depth, start);
        const int8_t *weights = w->weights + start * PANEL;
        int fine = 0;
        for (int r = 0; r < rows; r++) fine |= x.fine.scales[block * x.rows + r] != 0.0f;
        for (int part = 0; part <= fine; part++) {
            const Line line = part ? x.fine : x.coarse;
            if (pairs <= 2) {
                paired_sums(weights, line.values + 2 * start, x.depth, size, pairs, 0, QUADS, sums);
            } else {
                paired_sums(weights, line.values + 2 * start, x.depth, size, pairs, 0, QUADS / 2, sums);
                paired_sums(weights, line.values + 2 * start, x.depth, size, pairs, PANEL / 2, QUADS / 2, sums);
            }
            add_sums(w, sums, line, x.rows, block, rows, 0, out);
        }
    }
}

#define INT8_MANY_ROWS
#define MANY_ORDER BY_PAIRS
INLINE int takes_many(const Model *m, int rows) { return (void)m, rows >= 4; }

static void pair_many(const Panel *w, Lines x, int rows, float *out) {
#define PAIRS(COUNT) \
    case COUNT: tile_paired(&one, lines_at(x, r), COUNT, given, out + half * PANEL + r * PANEL_PAIR); break;
    for (int half = 0; half < 2; half++) {
        const Panel one = panel_after(w, half, 0);
        for (int r = 0, pairs; r < rows; r += 2 * pairs) {
            pairs = rows_at_once((rows - r + 1) / 2, MOST_PAIRS);
            const int given = rows - r < 2 * pairs ? rows - r : 2 * pairs;
            switch (pairs) {
                PAIRS(1)
                PAIRS(2)
                PAIRS(3)
                PAIRS(4)
                PAIRS(5)
            }
        }
    }
#undef PAIRS
}

static void many_int8(const Model *m, const Matrix *w, Lines x, int rows, Epilogue epilogue, void *y, int y_stride,
                      Share *share) {
    float block[MOST_ROWS * PANEL_PAIR] __attribute__((aligned(64)));
    for (int pair; (pair = pool_next(share)) >= 0;) {
        const Panel panel = panel_of(w, 2 * pair);
        pair_many(&panel, x, rows, block);
        finish(w, pair, block, rows, FP32, epilogue, m->shape.activation, y, y_stride);
    }
}

#endif
