/* The products of gemm.h for any CPU, on aarch64: the same sums in the same order, so the same bits, in tiles made for its
 * 32 registers of four floats. An input is multiplied out of a lane of the register it came in.
 */
#ifndef OUTRIDER_GEMM_NEON_H
#define OUTRIDER_GEMM_NEON_H

#if defined(__aarch64__)
#include <arm_neon.h>

#define QUADS (PANEL / 4) /* registers of a panel's columns */

/* A panel's weights for two neighbouring inputs. */
typedef struct {
    float32x4_t even[QUADS], odd[QUADS];
} Line;

INLINE void from_int8_neon(const int8_t *from, float32x4_t *to) {
    const int8x16_t all = vld1q_s8(from);
    const int16x8_t low = vmovl_s8(vget_low_s8(all)), high = vmovl_high_s8(all);
    to[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
    to[1] = vcvtq_f32_s32(vmovl_high_s16(low));
    to[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
    to[3] = vcvtq_f32_s32(vmovl_high_s16(high));
}

/* Inputs k and k + 1 of panel `panel` of a pair. */
INLINE Line line_of(const char *panels, int k, int panel, Stored stored) {
    Line line;
    if (stored == STORED_FP32) {
        const float *from = (const float *)panels + (int64_t)k * PANEL_PAIR + panel * PANEL;
        UNROLL for (int q = 0; q < QUADS; q++) {
            line.even[q] = vld1q_f32(from + 4 * q);
            line.odd[q] = vld1q_f32(from + PANEL_PAIR + 4 * q);
        }
        return line;
    }
    const int64_t at = (int64_t)(k / 32 * 2 + panel) * 16 + k % 32 / 2; /* counted in rows of a tile */
    if (stored == STORED_BF16) {
        UNROLL for (int q = 0; q < QUADS; q++) {
            const uint32x4_t both = vld1q_u32((const uint32_t *)panels + at * PANEL + 4 * q);
            line.even[q] = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
            line.odd[q] = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff0000u)));
        }
        return line;
    }
    from_int8_neon((const int8_t *)panels + at * 2 * PANEL, line.even);
    from_int8_neon((const int8_t *)panels + at * 2 * PANEL + PANEL, line.odd);
    return line;
}

/* Adds inputs k + 2 * HALF and the one after it; lanes must be constants. */
#define ADD_LINE(HALF)                                                                                     \
    UNROLL for (int p = 0; p < width; p++) {                                                               \
        const Line line = line_of(panels, k + 2 * HALF, first + p, stored);                                \
        UNROLL for (int r = 0; r < rows; r++)                                                              \
            UNROLL for (int q = 0; q < QUADS; q++) {                                                       \
                float32x4_t *sum = &sums[r][p * QUADS + q];                                                \
                *sum = vfmaq_laneq_f32(vfmaq_laneq_f32(*sum, line.even[q], in[r], 2 * HALF), line.odd[q],  \
                                       in[r], 2 * HALF + 1);                                               \
            }                                                                                              \
    }

/* `rows` (constant, at most 4) rows against `width` (constant) panels of a pair, from panel `first` on. */
INLINE void tile_neon(const char *panels, const char *x, int depth, int rows, int first, int width, Stored stored,
                      float *block) {
    const int64_t stride = (int64_t)depth * (stored == STORED_FP32 ? 4 : 2);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < width * PANEL; c++) block[r * PANEL_PAIR + first * PANEL + c] = 0.0f;
    for (int start = 0; start < depth; start += SUMMED) {
        const int stop = depth < start + SUMMED ? depth : start + SUMMED;
        float32x4_t sums[4][2 * QUADS];
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int c = 0; c < width * QUADS; c++) sums[r][c] = vdupq_n_f32(0.0f);
        for (int k = start; k < stop; k += 4) {
            float32x4_t in[4];
            UNROLL for (int r = 0; r < rows; r++)
                in[r] = stored == STORED_FP32
                            ? vld1q_f32((const float *)(x + r * stride) + k)
                            : vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *)(x + r * stride) + k), 16));
            ADD_LINE(0)
            ADD_LINE(1)
        }
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int c = 0; c < width * QUADS; c++) {
                float *total = block + r * PANEL_PAIR + first * PANEL + c * 4;
                vst1q_f32(total, vaddq_f32(vld1q_f32(total), sums[r][c]));
            }
    }
}

/* One or two rows need both panels' sums to keep the multipliers busy; three or four have enough with one. */
INLINE void rows_neon(const char *panels, const char *x, int depth, int rows, Stored stored, float *block) {
    const int64_t stride = (int64_t)depth * (stored == STORED_FP32 ? 4 : 2);
    for (int r = 0; r < rows;) {
        const int left = rows - r, count = left == 5 || left == 6 ? 3 : left < 4 ? left : 4;
        const char *from = x + r * stride;
        float *to = block + r * PANEL_PAIR;
        switch (count) {
            case 1: tile_neon(panels, from, depth, 1, 0, 2, stored, to); break;
            case 2: tile_neon(panels, from, depth, 2, 0, 2, stored, to); break;
            case 3:
                tile_neon(panels, from, depth, 3, 0, 1, stored, to);
                tile_neon(panels, from, depth, 3, 1, 1, stored, to);
                break;
            default:
                tile_neon(panels, from, depth, 4, 0, 1, stored, to);
                tile_neon(panels, from, depth, 4, 1, 1, stored, to);
        }
        r += count;
    }
}
#endif
#endif
