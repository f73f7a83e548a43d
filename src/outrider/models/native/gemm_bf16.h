/* The products of gemm.h on aarch64 with bf16 instructions: each multiplies four inputs of two rows with those of two columns.
 * Inputs are bf16, sums are fp32. There is one instruction and one order, inputs rising, for any number of rows, so a row has
 * the same bits in any company; they are other bits than fp32 arithmetic gives, since the instruction rounds in its own way.
 */
#ifndef OUTRIDER_GEMM_BF16_H
#define OUTRIDER_GEMM_BF16_H

#include <arm_neon.h>

#define BF16_PAIRS 4 /* of rows at once: their sums take 16 registers; with more, compilers run out of them */

#define BFMMLA(SUMS, ROWS, COLUMNS) \
    __asm__("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(SUMS) : "w"(ROWS), "w"(COLUMNS))

INLINE float32x4_t low_halves(float32x4_t a, float32x4_t b) {
    return vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}
INLINE float32x4_t high_halves(float32x4_t a, float32x4_t b) {
    return vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}

/* `pairs` pairs of rows against 4 * quads columns of a panel (both constants), added to `block`. A pair's second row is
 * `second` elements behind its first: 0 where there is none. */
INLINE void kernel_bf16(const char *panel, const uint16_t *x, int stride, int second, int depth, int pairs, int quads,
                        float *block) {
    float32x4_t sums[BF16_PAIRS][2 * QUADS]; /* [pair of rows][pair of columns]: first row's two, second row's two */
    UNROLL for (int p = 0; p < pairs; p++) {
        const float *upper = block + 2 * p * PANEL_PAIR, *lower = p + 1 < pairs || second ? upper + PANEL_PAIR : upper;
        UNROLL for (int q = 0; q < quads; q++) {
            sums[p][2 * q] = low_halves(vld1q_f32(upper + 4 * q), vld1q_f32(lower + 4 * q));
            sums[p][2 * q + 1] = high_halves(vld1q_f32(upper + 4 * q), vld1q_f32(lower + 4 * q));
        }
    }
    for (int k = 0; k < depth; k += 4, panel += 4 * 2 * PANEL) {
        float32x4_t columns[2 * QUADS];
        __builtin_prefetch(panel + 1024);
        __builtin_prefetch(panel + 1024 + 64);
        UNROLL for (int q = 0; q < quads; q++) {
            const float32x4_t two = vld1q_f32((const float *)panel + 4 * q); /* inputs of four columns */
            const float32x4_t next = vld1q_f32((const float *)panel + PANEL + 4 * q);
            columns[2 * q] = vzip1q_f32(two, next);
            columns[2 * q + 1] = vzip2q_f32(two, next);
        }
        UNROLL for (int p = 0; p < pairs; p++) {
            const uint16_t *upper = x + (int64_t)2 * p * stride + k, *lower = upper + (p + 1 < pairs ? stride : second);
            const uint16x8_t rows = vcombine_u16(vld1_u16(upper), vld1_u16(lower));
            UNROLL for (int c = 0; c < 2 * quads; c++) BFMMLA(sums[p][c], rows, columns[c]);
        }
    }
    UNROLL for (int p = 0; p < pairs; p++) {
        float *upper = block + 2 * p * PANEL_PAIR;
        UNROLL for (int q = 0; q < quads; q++) {
            vst1q_f32(upper + 4 * q, low_halves(sums[p][2 * q], sums[p][2 * q + 1]));
            if (p + 1 < pairs || second)
                vst1q_f32(upper + PANEL_PAIR + 4 * q, high_halves(sums[p][2 * q], sums[p][2 * q + 1]));
        }
    }
}

static void begin_bf16(int rows) { (void)rows; }

/* As pair_of of gemm.h, with x in bf16. */
static void pair_bf16(const char *panel, int64_t pitch, const void *x, int stride, int depth, int rows, int begun,
                      float *block) {
    if (!begun)
        for (int i = 0; i < rows * PANEL_PAIR; i += LANES) *(v16 *)(block + i) = splat(0.0f);
#define PAIRS(COUNT)                                                                                            \
    case COUNT:                                                                                                 \
        if (COUNT <= 2) {                                                                                       \
            kernel_bf16(panel, from, stride, second, depth, COUNT, QUADS, out);                                 \
        } else {                                                                                                \
            kernel_bf16(panel, from, stride, second, depth, COUNT, QUADS / 2, out);                             \
            kernel_bf16(panel + 2 * PANEL, from, stride, second, depth, COUNT, QUADS / 2, out + PANEL / 2);     \
        }                                                                                                       \
        break;
    for (int half = 0; half < 2; half++, panel += pitch)
        for (int r = 0, pairs; r < rows; r += 2 * pairs) {
            pairs = rows_at_once((rows - r + 1) / 2, BF16_PAIRS);
            const uint16_t *from = (const uint16_t *)x + (int64_t)r * stride;
            const int second = rows - r < 2 * pairs ? 0 : stride;
            float *out = block + r * PANEL_PAIR + half * PANEL;
            switch (pairs) {
                PAIRS(1)
                PAIRS(2)
                PAIRS(3)
                PAIRS(4)
            }
        }
#undef PAIRS
}

#endif
