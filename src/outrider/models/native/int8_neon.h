/* The tile of gemm_int8.h on aarch64: four rows of a panel's sixteen columns, sums in sixteen registers. */
#ifndef OUTRIDER_INT8_NEON_H
#define OUTRIDER_INT8_NEON_H

#include <arm_neon.h>

#define TILE_ROWS 4
#define TILE_ORDER BY_ROWS

#if defined(WITH_DOTPROD)
/* A block in assembly, since no compiler at hand orders it well: a column's products one after the other wait for one
 * another, and sixteen sums with their weights and inputs just fit in the registers.
 *   v0-v15   sums, four of each row. They begin as the bits of 1.5 * 2^23, a float whose last bits count integers below
 *            2^22: subtracting it gives the sum as a float, exactly, in a quarter of the time of a conversion.
 *   v16-v23  weights, v24-v27 the rows' inputs, v31 that float
 */
#define DOTS(SUM, WEIGHTS, INPUT, LANE) "sdot v" #SUM ".4s, v" #WEIGHTS ".16b, v" #INPUT ".4b[" #LANE "]\n\t"
#define DOTS_1(A, B, C, D, L) DOTS(0, A, 24, L) DOTS(1, B, 24, L) DOTS(2, C, 24, L) DOTS(3, D, 24, L)
#define DOTS_2(A, B, C, D, L) DOTS_1(A, B, C, D, L) DOTS(4, A, 25, L) DOTS(5, B, 25, L) DOTS(6, C, 25, L) DOTS(7, D, 25, L)
#define DOTS_3(A, B, C, D, L) DOTS_2(A, B, C, D, L) DOTS(8, A, 26, L) DOTS(9, B, 26, L) DOTS(10, C, 26, L) DOTS(11, D, 26, L)
#define DOTS_4(A, B, C, D, L) DOTS_3(A, B, C, D, L) DOTS(12, A, 27, L) DOTS(13, B, 27, L) DOTS(14, C, 27, L) DOTS(15, D, 27, L)

#define FETCH(A, B, C, D, AT, NEXT)                                                                               \
    "prfm pldl1keep, [%[w], #" #AT "+1024]\n\t"                                                                   \
    "ldp q" #A ", q" #B ", [%[w], #" #AT "]\n\tldp q" #C ", q" #D ", [%[w], #" #NEXT "]\n\t"
/* Sixteen inputs: four fours, weights fetched one four ahead. */
#define HALF(ROWS, AT0, N0, AT1, N1, AT2, N2, AT3, N3)                            \
    FETCH(16, 17, 18, 19, AT0, N0) FETCH(20, 21, 22, 23, AT1, N1)                 \
    DOTS_##ROWS(16, 17, 18, 19, 0) FETCH(16, 17, 18, 19, AT2, N2)                 \
    DOTS_##ROWS(20, 21, 22, 23, 1) FETCH(20, 21, 22, 23, AT3, N3)                 \
    DOTS_##ROWS(16, 17, 18, 19, 2) DOTS_##ROWS(20, 21, 22, 23, 3)

#define BEGIN(A, B, C, D) \
    "mov v" #A ".16b, v31.16b\n\tmov v" #B ".16b, v31.16b\n\tmov v" #C ".16b, v31.16b\n\tmov v" #D ".16b, v31.16b\n\t"
#define BEGIN_1 BEGIN(0, 1, 2, 3)
#define BEGIN_2 BEGIN_1 BEGIN(4, 5, 6, 7)
#define BEGIN_3 BEGIN_2 BEGIN(8, 9, 10, 11)
#define BEGIN_4 BEGIN_3 BEGIN(12, 13, 14, 15)

#define INPUTS_1(AT) "ldr q24, [%[x0], #" #AT "]\n\t"
#define INPUTS_2(AT) INPUTS_1(AT) "ldr q25, [%[x1], #" #AT "]\n\t"
#define INPUTS_3(AT) INPUTS_2(AT) "ldr q26, [%[x2], #" #AT "]\n\t"
#define INPUTS_4(AT) INPUTS_3(AT) "ldr q27, [%[x3], #" #AT "]\n\t"

#define END(AT, NEXT, A, B, C, D)                                                                                       \
    "fsub v" #A ".4s, v" #A ".4s, v31.4s\n\tfsub v" #B ".4s, v" #B ".4s, v31.4s\n\t"                                    \
    "fsub v" #C ".4s, v" #C ".4s, v31.4s\n\tfsub v" #D ".4s, v" #D ".4s, v31.4s\n\t"                                    \
    "stp q" #A ", q" #B ", [%[to], #" #AT "]\n\tstp q" #C ", q" #D ", [%[to], #" #NEXT "]\n\t"
#define END_1 END(0, 32, 0, 1, 2, 3)
#define END_2 END_1 END(64, 96, 4, 5, 6, 7)
#define END_3 END_2 END(128, 160, 8, 9, 10, 11)
#define END_4 END_3 END(192, 224, 12, 13, 14, 15)

/* As HALF, from codes: two fours to 64 bytes, the first in the low halves. v28 masks those, v29 holds the levels. */
#define EACH(OP, A, B, C, D) OP(A) OP(B) OP(C) OP(D)
#define LOW(A, B) "and v" #A ".16b, v" #B ".16b, v28.16b\n\ttbl v" #A ".16b, {v29.16b}, v" #A ".16b\n\t"
#define HIGH(A) "ushr v" #A ".16b, v" #A ".16b, #4\n\ttbl v" #A ".16b, {v29.16b}, v" #A ".16b\n\t"
#define CODES(ROWS, AT, NEXT, FIRST, SECOND)                                                        \
    FETCH(16, 17, 18, 19, AT, NEXT) LOW(20, 16) LOW(21, 17) LOW(22, 18) LOW(23, 19)                 \
    DOTS_##ROWS(20, 21, 22, 23, FIRST) EACH(HIGH, 16, 17, 18, 19) DOTS_##ROWS(16, 17, 18, 19, SECOND)

#define WEIGHTS_OF(ROWS)                                                       \
    INPUTS_##ROWS(0) HALF(ROWS, 0, 32, 64, 96, 128, 160, 192, 224)             \
    INPUTS_##ROWS(16) HALF(ROWS, 256, 288, 320, 352, 384, 416, 448, 480)       \
    "add %[w], %[w], #512\n\t"
#define CODES_OF(ROWS)                                                         \
    INPUTS_##ROWS(0) CODES(ROWS, 0, 32, 0, 1) CODES(ROWS, 64, 96, 2, 3)        \
    INPUTS_##ROWS(16) CODES(ROWS, 128, 160, 0, 1) CODES(ROWS, 192, 224, 2, 3)  \
    "add %[w], %[w], #256\n\t"

#define BLOCK_OF(ROWS, BODY)                                                                                         \
    __asm__ volatile("dup v31.4s, %w[counted]\n\tmovi v28.16b, #15\n\tldr q29, [%[levels]]\n\t" BEGIN_##ROWS      \
                     "1:\n\t" BODY(ROWS)                                                                            \
                     "add %[x0], %[x0], #32\n\tadd %[x1], %[x1], #32\n\t"                                          \
                     "add %[x2], %[x2], #32\n\tadd %[x3], %[x3], #32\n\t"                                          \
                     "subs %w[left], %w[left], #32\n\tb.ne 1b\n\t" END_##ROWS                                      \
                     : [w] "+r"(weights), [x0] "+r"(x0), [x1] "+r"(x1), [x2] "+r"(x2), [x3] "+r"(x3),                \
                       [left] "+r"(size)                                                                             \
                     : [to] "r"(sums), [counted] "r"(0x4b400000), [levels] "r"(levels)                               \
                     : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11",     \
                       "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24",    \
                       "v25", "v26", "v27", "v28", "v29", "v31")

/* Sums [rows][16], as floats, of `size` inputs of `rows` rows; from codes where there are levels. */
INLINE void block_sums(const int8_t *weights, const int8_t *levels, int coded, const int8_t *x, int depth, int size,
                       int rows, float *sums) {
    const int8_t *x0 = x, *x1 = x + depth, *x2 = x1 + depth, *x3 = x2 + depth;
    if (!coded) levels = x; /* any sixteen bytes */
    if (coded) {
        if (rows == 1) BLOCK_OF(1, CODES_OF);
        if (rows == 2) BLOCK_OF(2, CODES_OF);
        if (rows == 3) BLOCK_OF(3, CODES_OF);
        if (rows == 4) BLOCK_OF(4, CODES_OF);
    } else {
        if (rows == 1) BLOCK_OF(1, WEIGHTS_OF);
        if (rows == 2) BLOCK_OF(2, WEIGHTS_OF);
        if (rows == 3) BLOCK_OF(3, WEIGHTS_OF);
        if (rows == 4) BLOCK_OF(4, WEIGHTS_OF);
    }
}

/* Of `size` weights with as many inputs. */
INLINE int32_t block_product(const int8_t *a, const int8_t *b, int size) {
    int32x4_t total = vdupq_n_s32(0);
    for (int i = 0; i < size; i += 16) total = vdotq_s32(total, vld1q_s8(a + i), vld1q_s8(b + i));
    return vaddvq_s32(total);
}
#else
/* `size` inputs' weights from their codes. */
INLINE void decode(const int8_t *codes, int8x16_t levels, int size, int8_t *weights) {
    for (int i = 0; i < size * PANEL / 2; i += 16) {
        const uint8x16_t both = vld1q_u8((const uint8_t *)codes + i);
        int8_t *to = weights + i / 64 * 128 + i % 64;
        vst1q_s8(to, vqtbl1q_s8(levels, vandq_u8(both, vdupq_n_u8(15))));
        vst1q_s8(to + 64, vqtbl1q_s8(levels, vshrq_n_u8(both, 4)));
    }
}

/* Two products of int8 fit in 16 bits: two fours are multiplied into one register before they are widened. A column's sum
 * is in two neighbouring lanes: of low, columns 0 and 1 of four; of high, 2 and 3. */
INLINE void block_sums(const int8_t *weights, const int8_t *levels, int coded, const int8_t *x, int depth, int size,
                       int rows, float *sums) {
    int8_t decoded[BLOCK * PANEL] __attribute__((aligned(64)));
    if (coded) {
        decode(weights, vld1q_s8(levels), size, decoded);
        weights = decoded;
    }
    for (int r = 0; r < rows; r++) {
        int32x4_t low[4], high[4];
        UNROLL for (int q = 0; q < 4; q++) low[q] = high[q] = vdupq_n_s32(0);
        for (int i = 0; i < size; i += 8) {
            const int8_t *from = weights + i * PANEL;
            int32_t four[2];
            memcpy(four, x + (int64_t)r * depth + i, 8);
            const int8x8_t first = vreinterpret_s8_s32(vdup_n_s32(four[0]));
            const int8x8_t second = vreinterpret_s8_s32(vdup_n_s32(four[1]));
            UNROLL for (int q = 0; q < 4; q++) {
                const int8x16_t a = vld1q_s8(from + 16 * q), c = vld1q_s8(from + 64 + 16 * q);
                low[q] = vpadalq_s16(low[q], vmlal_s8(vmull_s8(vget_low_s8(a), first), vget_low_s8(c), second));
                high[q] = vpadalq_s16(high[q], vmlal_s8(vmull_s8(vget_high_s8(a), first), vget_high_s8(c), second));
            }
        }
        UNROLL for (int q = 0; q < 4; q++)
            vst1q_f32(sums + r * PANEL + 4 * q, vcvtq_f32_s32(vpaddq_s32(low[q], high[q])));
    }
}

INLINE int32_t block_product(const int8_t *a, const int8_t *b, int size) {
    int32x4_t total = vdupq_n_s32(0);
    for (int i = 0; i < size; i += 8) total = vpadalq_s16(total, vmull_s8(vld1_s8(a + i), vld1_s8(b + i)));
    return vaddvq_s32(total);
}
#endif

/* A block's sums, scaled, to the totals. */
INLINE void add_sums(const Panel *w, const float *sums, Line x, int held, int block, int rows, int coded, float *out) {
    UNROLL for (int q = 0; q < 4; q++) {
        float32x4_t scale = vdupq_n_f32(1.0f);
        if (!coded) scale = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(w->scales + block * PANEL + 4 * q), 16));
        UNROLL for (int r = 0; r < rows; r++) {
            float *total = out + r * PANEL_PAIR + 4 * q;
            const float32x4_t unit = vmulq_n_f32(scale, x.scales[block * held + r]);
            vst1q_f32(total, vfmaq_f32(vld1q_f32(total), vld1q_f32(sums + r * PANEL + 4 * q), unit));
        }
    }
}

/* `rows` (constant, at most TILE_ROWS) rows against a panel. */
INLINE void tile_int8(const Panel *w, Lines x, int rows, int coded, Turn turn, float *out) {
    (void)turn;
    float sums[TILE_ROWS * PANEL] __attribute__((aligned(64)));
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int q = 0; q < 4; q++)
        vst1q_f32(out + r * PANEL_PAIR + 4 * q, vdupq_n_f32(0.0f));
    for (int start = 0, block = 0; start < w->depth; start += BLOCK, block++) {
        const int size = block_size(w->depth, start);
        const int8_t *weights = w->weights + start * PANEL / (coded ? 2 : 1);
        block_sums(weights, w->levels, coded, x.coarse.values + start, x.depth, size, rows, sums);
        add_sums(w, sums, x.coarse, x.rows, block, rows, coded, out);
        int fine = 0;
        UNROLL for (int r = 0; r < rows; r++) fine |= x.fine.scales[block * x.rows + r] != 0.0f;
        if (fine) {
            block_sums(weights, w->levels, coded, x.fine.values + start, x.depth, size, rows, sums);
            add_sums(w, sums, x.fine, x.rows, block, rows, coded, out);
        }
    }
}

#if defined(WITH_I8MM)
#include "int8_i8mm.h"
#endif

#endif
