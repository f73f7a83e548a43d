/* The tile of stored.h on aarch64 without dot products. */
#ifndef OUTRIDER_STORED_NEON_H
#define OUTRIDER_STORED_NEON_H

#define OPENED_ROWS 4
#define QUADS_AT_ONCE 2 /* registers of four columns: with more, sums of four rows would not stay in theirs */
#define COUNTED 0x4b400000 /* the bits of 1.5 * 2^23, a float whose last bits count integers below 2^22 */

/* As block_sums of int8_neon.h. Weights may be -128: two products with inputs within 127 fit in 16 bits still. */
INLINE void add_part(const int8_t *at, const Inputs *x, int start, int part, int rows, int32x4_t sums[][QUADS_AT_ONCE]) {
    for (int r = 0; r < rows; r++) {
        int32x4_t low[QUADS_AT_ONCE], high[QUADS_AT_ONCE];
        UNROLL for (int q = 0; q < QUADS_AT_ONCE; q++) low[q] = high[q] = vdupq_n_s32(0);
        for (int k = 0; k < part; k += 8) {
            const int8_t *from = at + k * PANEL;
            int32_t four[2];
            memcpy(four, x[r].values + start + k, 8);
            const int8x8_t first = vreinterpret_s8_s32(vdup_n_s32(four[0]));
            const int8x8_t second = vreinterpret_s8_s32(vdup_n_s32(four[1]));
            UNROLL for (int q = 0; q < QUADS_AT_ONCE; q++) {
                const int8x16_t a = vld1q_s8(from + 16 * q), c = vld1q_s8(from + 64 + 16 * q);
                low[q] = vpadalq_s16(low[q], vmlal_s8(vmull_s8(vget_low_s8(a), first), vget_low_s8(c), second));
                high[q] = vpadalq_s16(high[q], vmlal_s8(vmull_s8(vget_high_s8(a), first), vget_high_s8(c), second));
            }
        }
        UNROLL for (int q = 0; q < QUADS_AT_ONCE; q++) sums[r][q] = vaddq_s32(sums[r][q], vpaddq_s32(low[q], high[q]));
    }
}

/* An integer counted in a float. */
INLINE float32x4_t counted(int32x4_t sums) {
    return vsubq_f32(vreinterpretq_f32_s32(sums), vreinterpretq_f32_u32(vdupq_n_u32(COUNTED)));
}

/* `rows` (constant) rows of `size` inputs against an opened block whose parts have `part` (constant) inputs, added to
 * out[r * PANEL_PAIR]. */
INLINE void tile_opened(const Opened *w, const Inputs *x, int part, int lows, int size, int rows, float *out) {
    for (int lane = 0; lane < PANEL; lane += 4 * QUADS_AT_ONCE) {
        float32x4_t steps[OPENED_ROWS][QUADS_AT_ONCE], least[OPENED_ROWS][QUADS_AT_ONCE];
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int q = 0; q < QUADS_AT_ONCE; q++)
            steps[r][q] = least[r][q] = vdupq_n_f32(0.0f);
        for (int start = 0, p = 0; start < size; start += part, p++) {
            int32x4_t sums[OPENED_ROWS][QUADS_AT_ONCE];
            UNROLL for (int r = 0; r < rows; r++) UNROLL for (int q = 0; q < QUADS_AT_ONCE; q++)
                sums[r][q] = vdupq_n_s32(COUNTED + (lows ? 128 * part_sum(x + r, p, part) : 0));
            add_part(w->weights + start * PANEL + 4 * lane, x, start, part, rows, sums);
            UNROLL for (int q = 0; q < QUADS_AT_ONCE; q++) {
                const int at = p * PANEL + lane + 4 * q;
                const float32x4_t step = vld1q_f32(w->steps + at);
                UNROLL for (int r = 0; r < rows; r++) {
                    steps[r][q] = vfmaq_f32(steps[r][q], counted(sums[r][q]), step);
                    if (lows) least[r][q] = vfmaq_n_f32(least[r][q], vld1q_f32(w->lows + at), (float)part_sum(x + r, p, part));
                }
            }
        }
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int q = 0; q < QUADS_AT_ONCE; q++) {
            float *total = out + r * PANEL_PAIR + lane + 4 * q;
            float32x4_t value = vmulq_f32(steps[r][q], vld1q_f32(w->unit + lane + 4 * q));
            if (lows) value = vfmaq_f32(value, least[r][q], vld1q_f32(w->low_unit + lane + 4 * q));
            vst1q_f32(total, vfmaq_n_f32(vld1q_f32(total), value, x[r].scale));
        }
    }
}

#endif
