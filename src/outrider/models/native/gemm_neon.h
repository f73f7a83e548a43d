/* The products of gemm.h on aarch64: the same sums in the same order, so the same bits, in tiles made for its 32 registers
 * of four floats. An input is multiplied out of a lane of the register it came in.
 */
#ifndef OUTRIDER_GEMM_NEON_H
#define OUTRIDER_GEMM_NEON_H

#include <arm_neon.h>

#define QUADS (PANEL / 4) /* registers of a panel's columns */

/* A panel's weights for two neighbouring inputs. */
typedef struct {
    float32x4_t even[QUADS], odd[QUADS];
} Inputs;

/* Inputs k and k + 1. */
INLINE Inputs line_of(const char *panel, int k, int bf16) {
    Inputs line;
    UNROLL for (int q = 0; q < QUADS; q++) {
        if (bf16) {
            const uint32x4_t both = vld1q_u32((const uint32_t *)panel + k / 2 * PANEL + 4 * q);
            line.even[q] = vreinterpretq_f32_u16(vtrn1q_u16(vdupq_n_u16(0), vreinterpretq_u16_u32(both))); /* a shift */
            line.odd[q] = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff0000u)));
        } else {
            const float *from = (const float *)panel + k * PANEL + 4 * q;
            line.even[q] = vld1q_f32(from);
            line.odd[q] = vld1q_f32(from + PANEL);
        }
    }
    return line;
}

/* Adds inputs k + 2 * HALF and the one after it; lanes must be constants. */
#define ADD_LINE(HALF)                                                                                             \
    {                                                                                                              \
        const Inputs line = line_of(panel, k + 2 * HALF, bf16);                                                      \
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int q = 0; q < QUADS; q++)                               \
            sums[r][q] = vfmaq_laneq_f32(vfmaq_laneq_f32(sums[r][q], line.even[q], in[r], 2 * HALF), line.odd[q],  \
                                         in[r], 2 * HALF + 1);                                                     \
    }

#define KERNEL_ROWS 4
#define PANELS(ROWS) 1 /* multiplied at once */

/* `rows` (constant, at most KERNEL_ROWS) rows against a panel. */
INLINE void kernel(const char *panel, const float *x, int depth, int rows, int panels, int bf16, float *block) {
    (void)panels;
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int q = 0; q < QUADS; q++)
        vst1q_f32(block + r * PANEL_PAIR + 4 * q, vdupq_n_f32(0.0f));
    for (int start = 0; start < depth; start += SUMMED) {
        const int stop = depth < start + SUMMED ? depth : start + SUMMED;
        float32x4_t sums[KERNEL_ROWS][QUADS];
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int q = 0; q < QUADS; q++) sums[r][q] = vdupq_n_f32(0.0f);
        for (int k = start; k < stop; k += 4) {
            float32x4_t in[KERNEL_ROWS];
            const char *ahead = panel + (int64_t)k * PANEL * (bf16 ? 2 : 4) + 1024;
            __builtin_prefetch(ahead);
            __builtin_prefetch(ahead + 64);
            UNROLL for (int r = 0; r < rows; r++) in[r] = vld1q_f32(x + (int64_t)r * depth + k);
            ADD_LINE(0)
            ADD_LINE(1)
        }
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int q = 0; q < QUADS; q++) {
            float *total = block + r * PANEL_PAIR + 4 * q;
            vst1q_f32(total, vaddq_f32(vld1q_f32(total), sums[r][q]));
        }
    }
}

#endif
