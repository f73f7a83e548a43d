/* y[rows, columns] = x[rows, depth] · W^T for few rows and weights that stream from memory once.
 *
 * W is packed in panels of 16 output columns, in the order a pass reads it; a pair of them is the unit threads share out:
 *   fp32 [panel][depth][16]
 *   bf16 [panel][depth/32][16][16][2], where [16][16][2] is a tile of AMX
 * (int8 is multiplied otherwise: gemm_int8.h). Every output element is one running sum over depth in increasing order, so
 * its bits depend neither on the number of rows nor on the thread that computed it. Which kernel runs depends on the CPU
 * alone.
 */
#ifndef OUTRIDER_GEMM_H
#define OUTRIDER_GEMM_H

#include "decoder.h"
#include "vector.h"

/* What becomes of a pair's 32 columns of up to 32 rows. */
typedef enum {
    PLAIN,  /* to fp32 y, bias added */
    GATED,  /* the pair is 16 gate and the matching 16 up columns: act(gate) * up, to the next product's input */
} Epilogue;

#define SUMMED 64

/* `block` holds fp32 results [rows][32] of one pair of panels. */
static void finish(const Matrix *w, int pair, const float *block, int rows, int bf16, Epilogue epilogue,
                          int activation, void *y, int y_stride) {
    const float *bias = w->bias ? w->bias + pair * PANEL_PAIR : 0;
    for (int r = 0; r < rows; r++) {
        v16 first = *(const v16 *)(block + r * PANEL_PAIR), second = *(const v16 *)(block + r * PANEL_PAIR + PANEL);
        if (bias) {
            first += *(const v16 *)bias;
            second += *(const v16 *)(bias + PANEL);
        }
        if (epilogue == GATED) {
            v16 gate = activation == 0 ? silu(first) : gelu_tanh(first);
            store(y, (int64_t)r * y_stride + pair * PANEL, gate * second, bf16);
        } else {
            store(y, (int64_t)r * y_stride + pair * PANEL_PAIR, first, 0);
            store(y, (int64_t)r * y_stride + pair * PANEL_PAIR + PANEL, second, 0);
        }
    }
}

INLINE const char *panel_at(const Matrix *w, int panel, int bf16) {
    return (const char *)w->data + (int64_t)panel * w->depth * PANEL * (bf16 ? 2 : 4);
}

/* Of `left` rows, how many to multiply at once where `most` fit in the registers: as evenly as can be, so that no few rows
 * are left over. */
INLINE int rows_at_once(int left, int most) {
    const int turns = (left + most - 1) / most;
    return (left + turns - 1) / turns;
}

#if defined(__aarch64__)
#include "gemm_neon.h"
#else
#define KERNEL_ROWS 8

/* Any CPU: `count` (constant, at most KERNEL_ROWS) rows against one panel. Sums run over SUMMED terms at a time and then
 * over those sums: in fp32 that halves the rounding error of one long sum. */
INLINE void kernel(const char *panel, const char *x, int depth, int count, int bf16, float *block) {
    const int64_t stride = (int64_t)depth * (bf16 ? 2 : 4);
    UNROLL for (int r = 0; r < count; r++) *(v16 *)(block + r * PANEL_PAIR) = splat(0.0f);
    for (int start = 0; start < depth; start += SUMMED) {
        const int stop = depth < start + SUMMED ? depth : start + SUMMED;
        v16 sums[KERNEL_ROWS];
        UNROLL for (int r = 0; r < count; r++) sums[r] = splat(0.0f);
        if (bf16) {
            for (int k = start / 2; k < stop / 2; k++) {
                const u16v both = ((const u16v *)panel)[k];
                const v16 even = (v16)(both << 16), odd = (v16)(both & 0xffff0000u);
                UNROLL for (int r = 0; r < count; r++) {
                    const uint16_t *row = (const uint16_t *)(x + r * stride) + 2 * k;
                    sums[r] = sums[r] + splat(bf16_to_float(row[0])) * even;
                    sums[r] = sums[r] + splat(bf16_to_float(row[1])) * odd;
                }
            }
        } else {
            for (int k = start; k < stop; k++)
                UNROLL for (int r = 0; r < count; r++)
                    sums[r] = sums[r] + splat(((const float *)(x + r * stride))[k]) * ((const v16 *)panel)[k];
        }
        UNROLL for (int r = 0; r < count; r++) {
            v16 *total = (v16 *)(block + r * PANEL_PAIR);
            *total = *total + sums[r];
        }
    }
}
#endif

/* All rows against one panel. The number of rows must be a constant where they are multiplied; all sum in the same order. */
INLINE void rows_of(const char *panel, const char *x, int depth, int rows, int bf16, float *block) {
    const int64_t stride = (int64_t)depth * (bf16 ? 2 : 4);
#define ROWS(COUNT) \
    case COUNT: kernel(panel, x + r * stride, depth, COUNT, bf16, block + r * PANEL_PAIR); break;
    for (int r = 0, count; r < rows; r += count) switch (count = rows_at_once(rows - r, KERNEL_ROWS)) {
            ROWS(1)
            ROWS(2)
            ROWS(3)
            ROWS(4)
#if KERNEL_ROWS == 8
            ROWS(5)
            ROWS(6)
            ROWS(7)
            ROWS(8)
#endif
        }
#undef ROWS
}

static void pair_of(const Matrix *w, int pair, const char *x, int rows, int bf16, float *block) {
    for (int half = 0; half < 2; half++) {
        const char *panel = panel_at(w, 2 * pair + half, bf16);
        if (bf16)
            rows_of(panel, x, w->depth, rows, 1, block + half * PANEL);
        else
            rows_of(panel, x, w->depth, rows, 0, block + half * PANEL);
    }
}

#include "gemm_amx.h"

/* The share of `thread` of `threads`. x: at most MOST_ROWS rows, padded to 32 readable ones. */
static void gemm(const Model *m, const Matrix *w, const void *x, int rows, Epilogue epilogue, void *y, int y_stride,
                 int thread, int threads) {
    float block[MOST_ROWS * PANEL_PAIR] __attribute__((aligned(64)));
    const int bf16 = m->shape.bf16, amx = bf16 && m->shape.kernels == KERNELS_AMX;
    const int pairs = w->columns / PANEL_PAIR;
    const int first = (int)((int64_t)pairs * thread / threads), last = (int)((int64_t)pairs * (thread + 1) / threads);
    if (amx) amx_configure(rows);
    for (int pair = first; pair < last; pair++) {
        if (amx)
            pair_amx(w, pair, x, rows, block);
        else
            pair_of(w, pair, x, rows, bf16, block);
        finish(w, pair, block, rows, bf16, epilogue, m->shape.activation, y, y_stride);
    }
}

#endif
