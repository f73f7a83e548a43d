/* The products of gemm.h on aarch64: the same sums in the same order, so the same bits, in tiles made for its 32 registers
 * of four floats. An input is multiplied out of a lane of the register it came in.
 */
#ifndef OUTRIDER_GEMM_NEON_H
#define OUTRIDER_GEMM_NEON_H

#include <arm_neon.h>

#define QUADS (PANEL / 4) /* registers of a panel's columns */
#define KERNEL_ROWS 4
#define PANELS(ROWS) 1 /* multiplied at once */

/* In place: left to itself, the compiler moves sums from register to register. */
#define FMLA(SUM, WEIGHTS, IN, LANE) \
    __asm__("fmla %0.4s, %1.4s, %2.s[" #LANE "]" : "+w"(SUM) : "w"(WEIGHTS), "w"(IN))

/* Adds inputs EVEN and ODD of four; their weights lie at `at`, one's after the other's, or in bf16 side by side. All sums are
 * added to once before any is again: an addition takes a while. */
#define ADD_TWO(EVEN, ODD)                                                                                           \
    {                                                                                                                \
        float32x4_t weights[QUADS];                                                                                  \
        uint16x8_t both[QUADS];                                                                                      \
        UNROLL for (int q = 0; q < QUADS; q++) {                                                                     \
            both[q] = vld1q_u16((const uint16_t *)at + 8 * q);                                                       \
            weights[q] = bf16 ? vreinterpretq_f32_u16(vtrn1q_u16(vdupq_n_u16(0), both[q])) /* a shift has one unit */ \
                              : vreinterpretq_f32_u16(both[q]);                                                      \
            UNROLL for (int r = 0; r < rows; r++) FMLA(sums[r][q], weights[q], in[r], EVEN);                         \
        }                                                                                                            \
        UNROLL for (int q = 0; q < QUADS; q++) {                                                                     \
            weights[q] = bf16 ? vreinterpretq_f32_u32(                                                               \
                                    vandq_u32(vreinterpretq_u32_u16(both[q]), vdupq_n_u32(0xffff0000u)))             \
                              : vld1q_f32((const float *)at + PANEL + 4 * q);                                        \
            UNROLL for (int r = 0; r < rows; r++) FMLA(sums[r][q], weights[q], in[r], ODD);                          \
        }                                                                                                            \
        at += PANEL * (bf16 ? 4 : 8);                                                                                \
    }

/* `rows` (constant, at most KERNEL_ROWS) rows against a panel, added to `block`. */
INLINE void kernel(const char *panel, int64_t pitch, const float *x, int stride, int depth, int rows, int panels, int bf16,
                   Turn turn, float *block) {
    (void)panels, (void)pitch, (void)turn;
    const char *at = panel;
    for (int start = 0; start < depth; start += SUMMED) {
        const float *from = x + start, *stop = x + (depth < start + SUMMED ? depth : start + SUMMED);
        float32x4_t sums[KERNEL_ROWS][QUADS];
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int q = 0; q < QUADS; q++) sums[r][q] = vdupq_n_f32(0.0f);
        for (; from < stop; from += 4) {
            float32x4_t in[KERNEL_ROWS];
            __builtin_prefetch(at + 1024);
            __builtin_prefetch(at + 1024 + 64);
            UNROLL for (int r = 0; r < rows; r++) in[r] = vld1q_f32(from + (int64_t)r * stride);
            ADD_TWO(0, 1)
            ADD_TWO(2, 3)
        }
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int q = 0; q < QUADS; q++) {
            float *total = block + r * PANEL_PAIR + 4 * q;
            vst1q_f32(total, vaddq_f32(vld1q_f32(total), sums[r][q]));
        }
    }
}

#endif
