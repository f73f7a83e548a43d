/* y[rows, columns] = x[rows, depth] · W^T for few rows and weights that stream from memory once.
 *
 * W is packed in pairs of panels of 16 output columns, the unit threads share out, in the order a pass reads it:
 *   fp32 [pair][depth][panel][16]
 *   bf16 [pair][depth/32][panel][16][16][2], where [16][16][2] is a tile of AMX
 *   int8 [pair][depth/32][panel][16][2][16]: the same tile, even inputs apart from odd ones, which is how it is widened
 * An int8 weight is exact in bf16, so it is widened and multiplied like one, and its column's scale is applied to the
 * finished sum. Every output element is one running sum over depth in increasing order, so its bits depend neither on
 * the number of rows nor on the thread that computed it. Which kernel runs depends on the CPU alone.
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

/* How a weight is stored. */
typedef enum { STORED_FP32, STORED_BF16, STORED_INT8 } Stored;
static const int STORED_BYTES[] = {4, 2, 1};

#define KERNEL_ROWS 8 /* rows the generic kernel keeps in registers */
#define SUMMED 64

/* `block` holds fp32 results [rows][32] of one pair of panels. */
static void finish(const Matrix *w, int pair, const float *block, int rows, int bf16, Epilogue epilogue,
                          int activation, void *y, int y_stride) {
    const float *bias = w->bias ? w->bias + pair * PANEL_PAIR : 0;
    const float *scales = w->scales ? w->scales + pair * PANEL_PAIR : 0;
    for (int r = 0; r < rows; r++) {
        v16 first = *(const v16 *)(block + r * PANEL_PAIR), second = *(const v16 *)(block + r * PANEL_PAIR + PANEL);
        if (scales) {
            first = first * *(const v16 *)scales;
            second = second * *(const v16 *)(scales + PANEL);
        }
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

/* Any CPU: `count` (constant, at most KERNEL_ROWS) rows against one pair of panels. Sums run over SUMMED terms at a time
 * and then over those sums: in fp32 that halves the rounding error of one long sum. */
INLINE void kernel(const char *panels, const char *x, int depth, int count, Stored stored, float *block) {
    const int64_t stride = (int64_t)depth * (stored == STORED_FP32 ? 4 : 2);
    UNROLL for (int r = 0; r < count; r++)
        *(v16 *)(block + r * PANEL_PAIR) = *(v16 *)(block + r * PANEL_PAIR + PANEL) = splat(0.0f);
    for (int start = 0; start < depth; start += SUMMED) {
        const int stop = depth < start + SUMMED ? depth : start + SUMMED;
        v16 first[KERNEL_ROWS], second[KERNEL_ROWS];
        UNROLL for (int r = 0; r < count; r++) first[r] = second[r] = splat(0.0f);
        if (stored == STORED_FP32) {
            const v16 *a = (const v16 *)panels;
            for (int k = start; k < stop; k++)
                UNROLL for (int r = 0; r < count; r++) {
                    v16 value = splat(((const float *)(x + r * stride))[k]);
                    first[r] = first[r] + value * a[2 * k];
                    second[r] = second[r] + value * a[2 * k + 1];
                }
        } else {
            for (int k = start / 2; k < stop / 2; k++) {
                v16 a0, a1, b0, b1;
                const int64_t at = k / 16 * 32 + k % 16; /* counted in rows of a tile */
                if (stored == STORED_INT8) {
                    const b16 *a = (const b16 *)panels + 2 * at, *b = a + 32;
                    a0 = from_int8(a[0]), a1 = from_int8(a[1]), b0 = from_int8(b[0]), b1 = from_int8(b[1]);
                } else {
                    const u16v *a = (const u16v *)panels + at, *b = a + 16;
                    a0 = (v16)(*a << 16), a1 = (v16)(*a & 0xffff0000u);
                    b0 = (v16)(*b << 16), b1 = (v16)(*b & 0xffff0000u);
                }
                UNROLL for (int r = 0; r < count; r++) {
                    const uint16_t *row = (const uint16_t *)(x + r * stride) + 2 * k;
                    v16 x0 = splat(bf16_to_float(row[0])), x1 = splat(bf16_to_float(row[1]));
                    first[r] = first[r] + x0 * a0;
                    second[r] = second[r] + x0 * b0;
                    first[r] = first[r] + x1 * a1;
                    second[r] = second[r] + x1 * b1;
                }
            }
        }
        UNROLL for (int r = 0; r < count; r++) {
            v16 *total = (v16 *)(block + r * PANEL_PAIR);
            total[0] = total[0] + first[r];
            total[1] = total[1] + second[r];
        }
    }
}

INLINE const char *pair_of(const Matrix *w, int pair, Stored stored) {
    return (const char *)w->data + (int64_t)pair * w->depth * PANEL_PAIR * STORED_BYTES[stored];
}

#include "gemm_neon.h"

/* Several widths, so that few rows do not pay for many; all sum in the same order. */
INLINE void rows_generic(const Matrix *w, int pair, const char *x, int rows, Stored stored, float *block) {
    const int64_t stride = (int64_t)w->depth * (stored == STORED_FP32 ? 4 : 2);
    const char *panels = pair_of(w, pair, stored);
#if defined(__aarch64__)
    (void)stride;
    rows_neon(panels, x, w->depth, rows, stored, block);
#else
    int r = 0;
    for (; rows - r >= 8; r += 8) kernel(panels, x + r * stride, w->depth, 8, stored, block + r * PANEL_PAIR);
    for (; rows - r >= 4; r += 4) kernel(panels, x + r * stride, w->depth, 4, stored, block + r * PANEL_PAIR);
    for (; rows - r >= 2; r += 2) kernel(panels, x + r * stride, w->depth, 2, stored, block + r * PANEL_PAIR);
    for (; rows - r >= 1; r += 1) kernel(panels, x + r * stride, w->depth, 1, stored, block + r * PANEL_PAIR);
#endif
}

static void pair_generic(const Matrix *w, int pair, const char *x, int rows, int bf16, float *block) {
    if (w->scales)
        rows_generic(w, pair, x, rows, STORED_INT8, block);
    else if (bf16)
        rows_generic(w, pair, x, rows, STORED_BF16, block);
    else
        rows_generic(w, pair, x, rows, STORED_FP32, block);
}

#include "gemm_amx.h"

/* The share of `thread` of `threads`. x has rows padded to 32 readable rows. */
static void gemm(const Model *m, const Matrix *w, const void *x, int rows, Epilogue epilogue, void *y, int y_stride,
                 int thread, int threads) {
    enum { STRIP = 128 }; /* rows whose results fit on the stack */
    float block[STRIP * PANEL_PAIR] __attribute__((aligned(64)));
    const int bf16 = m->shape.bf16, amx = bf16 && m->shape.kernels == KERNELS_AMX;
    const int pairs = w->columns / PANEL_PAIR;
    const int first = (int)((int64_t)pairs * thread / threads), last = (int)((int64_t)pairs * (thread + 1) / threads);
    const int64_t x_stride = (int64_t)w->depth * (bf16 ? 2 : 4), y_bytes = epilogue == GATED && bf16 ? 2 : 4;
    uint16_t *widened = (uint16_t *)(m->scratch + thread * m->scratch_size);
    if (amx) amx_configure(rows);
    for (int pair = first; pair < last; pair++)
        for (int r = 0; r < rows; r += STRIP) {
            int count = rows - r < STRIP ? rows - r : STRIP;
            const char *strip = (const char *)x + r * x_stride;
            if (amx)
                pair_amx(w, pair, strip, count, widened, block);
            else
                pair_generic(w, pair, strip, count, bf16, block);
            finish(w, pair, block, count, bf16, epilogue, m->shape.activation,
                   (char *)y + (int64_t)r * y_stride * y_bytes, y_stride);
        }
}

#endif
