/* y[rows, columns] = x[rows, depth] · W^T for few rows and weights that stream from memory once.
 *
 * W is packed in panels of 16 output columns, in the order a pass reads it; a pair of them is the unit threads share out:
 *   fp32 [panel][depth][16]
 *   bf16 [panel][depth/32][16][16][2], where [16][16][2] is a tile of AMX; inputs are bf16 then, too, where those are
 *        multiplied (gemm_amx.h, gemm_bf16.h), and else fp32 numbers that bf16 can hold, so that no row is widened again for every panel
 * (int8 is multiplied otherwise: gemm_int8.h). Every output element is one running sum over depth in increasing order, so
 * its bits depend neither on the number of rows nor on the thread that computed it. Which kernel runs depends on the CPU
 * alone.
 */
#ifndef OUTRIDER_GEMM_H
#define OUTRIDER_GEMM_H

#include "decoder.h"
#include "pool.h"
#include "vector.h"

/* What becomes of a pair's 32 columns of up to 32 rows. */
typedef enum {
    PLAIN,  /* to fp32 y, bias added */
    AWAY,   /* the same, past the caches where the CPU can: more than those hold for later */
    GATED,  /* the pair is 16 gate and the matching 16 up columns: act(gate) * up, to the next product's input */
} Epilogue;

#define SUMMED 64

/* A row of a pair's fp32 results. */
INLINE void finish_row(const Matrix *w, int pair, const float *sums, Form form, Epilogue epilogue, int activation, void *y,
                       int64_t row) {
    v16 first = *(const v16 *)sums, second = *(const v16 *)(sums + PANEL);
    if (w->bias) {
        const float *bias = w->bias + pair * PANEL_PAIR;
        first += *(const v16 *)bias;
        second += *(const v16 *)(bias + PANEL);
    }
    if (epilogue == GATED) {
        v16 gate = activation == 0 ? silu(first) : gelu_tanh(first);
        store(y, row + pair * PANEL, gate * second, form);
    } else if (epilogue == AWAY) {
        store_away((float *)y + row + pair * PANEL_PAIR, first);
        store_away((float *)y + row + pair * PANEL_PAIR + PANEL, second);
    } else {
        store(y, row + pair * PANEL_PAIR, first, FP32);
        store(y, row + pair * PANEL_PAIR + PANEL, second, FP32);
    }
}

/* `block` holds fp32 results [rows][32] of one pair of panels. */
static void finish(const Matrix *w, int pair, const float *block, int rows, Form form, Epilogue epilogue,
                   int activation, void *y, int y_stride) {
    for (int r = 0; r < rows; r++)
        finish_row(w, pair, block + r * PANEL_PAIR, form, epilogue, activation, y, (int64_t)r * y_stride);
}

/* Whether bf16 numbers are multiplied with bf16 ones. */
INLINE int bf16_products(const Shape *s) {
    return s->bf16 && (s->kernels == KERNELS_AMX || s->kernels == KERNELS_BF16);
}

/* How matrix inputs are stored. */
INLINE Form input_form(const Shape *s) {
    if (s->integers || !s->bf16) return FP32;
    return bf16_products(s) ? BF16 : ROUNDED;
}

/* Of `left` rows, how many to multiply at once where `most` fit in the registers: as evenly as can be, so that no few rows
 * are left over. */
INLINE int rows_at_once(int left, int most) {
    const int turns = (left + most - 1) / most;
    return (left + turns - 1) / turns;
}

/* Which of the tiles that rows are taken in, one after the other, against the same weights. */
typedef struct {
    int tile, tiles;
} Turn;

INLINE Turn turns_of(int rows, int most) { return (Turn){0, (rows + most - 1) / most}; }

#if defined(__aarch64__)
#include "gemm_neon.h"
#elif defined(WITH_AVX2)
#include "gemm_x86.h"
#else
#include "gemm_plain.h"
#endif

/* All rows of x, `stride` apart, against `depth` of both panels of a pair, which lie `pitch` bytes apart: to block[rows][32],
 * or `begun`, added to it. The number of rows must be a constant where they are multiplied; however many there are, a row's
 * sums run in the same order. */
static void pair_of(const char *panel, int64_t pitch, const float *x, int stride, int depth, int rows, int bf16, int begun,
                    float *block) {
    if (!begun)
        for (int i = 0; i < rows * PANEL_PAIR; i += LANES) *(v16 *)(block + i) = splat(0.0f);
#define ROWS(COUNT)                                                                                             \
    case COUNT:                                                                                                 \
        if (bf16)                                                                                               \
            kernel(panel, pitch, x + (int64_t)r * stride, stride, depth, COUNT, PANELS(COUNT), 1, turn, out);   \
        else                                                                                                    \
            kernel(panel, pitch, x + (int64_t)r * stride, stride, depth, COUNT, PANELS(COUNT), 0, turn, out);   \
        break;
    for (int half = 0; half < 2; half += PANELS(rows), panel += pitch) {
        float *out = block + half * PANEL;
        Turn turn = turns_of(rows, KERNEL_ROWS);
        for (int r = 0, count; r < rows; r += count, turn.tile++, out += count * PANEL_PAIR)
            switch (count = rows_at_once(rows - r, KERNEL_ROWS)) {
                ROWS(1)
                ROWS(2)
                ROWS(3)
                ROWS(4)
#if KERNEL_ROWS > 4
                ROWS(5)
                ROWS(6)
#endif
#if KERNEL_ROWS > 6
                ROWS(7)
                ROWS(8)
#endif
#if KERNEL_ROWS > 8
                ROWS(9)
                ROWS(10)
                ROWS(11)
                ROWS(12)
#endif
            }
    }
#undef ROWS
}

/* The same with x in bf16, after begin_bf16 of so many rows. */
#if defined(WITH_AMX)
#include "gemm_amx.h"
#elif defined(WITH_BF16)
#include "gemm_bf16.h"
#else
static void begin_bf16(int rows) { (void)rows; }
static void pair_bf16(const char *panel, int64_t pitch, const void *x, int stride, int depth, int rows, int begun,
                      float *block) {
    (void)panel, (void)pitch, (void)x, (void)stride, (void)depth, (void)rows, (void)begun, (void)block;
}
#endif
#if !defined(WITH_AMX)
static void amx_release(void) {}
#endif

/* The share of `thread` of `threads`. x: at most MOST_ROWS rows, padded to 32 readable ones. */
static void gemm(const Model *m, const Matrix *w, const void *x, int rows, Epilogue epilogue, void *y, int y_stride,
                 int thread, int threads) {
    float block[MOST_ROWS * PANEL_PAIR] __attribute__((aligned(64)));
    const int bf16 = m->shape.bf16, narrow_x = bf16_products(&m->shape);
    const int64_t pitch = (int64_t)w->depth * PANEL * (bf16 ? 2 : 4);
    Share share = pool_share(w->columns / PANEL_PAIR, thread, threads);
#if defined(WITH_AMX)
    if (narrow_x) {
        pairs_bf16(m, w, x, rows, epilogue, y, y_stride, &share);
        return;
    }
#endif
    if (narrow_x) begin_bf16(rows);
    for (int pair; (pair = pool_next(&share)) >= 0;) {
        const char *panel = (const char *)w->data + 2 * pair * pitch;
        if (narrow_x)
            pair_bf16(panel, pitch, x, w->depth, w->depth, rows, 0, block);
        else
            pair_of(panel, pitch, x, w->depth, w->depth, rows, bf16, 0, block);
        finish(w, pair, block, rows, input_form(&m->shape), epilogue, m->shape.activation, y, y_stride);
    }
}

#endif
