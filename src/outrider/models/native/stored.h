/* Matrices that stay as a GGUF file quantised them, multiplied as fp32 numbers: the very ones, and so the very bits, that a
 * model widened to fp32 has. A piece of a pair of panels is unpacked to fp32, once for all rows of a pass, and multiplied by
 * the kernels of gemm.h, whose sums do not depend on how depth is cut into multiples of SUMMED.
 *
 * A strip has panels of 16 columns, a panel has the file's blocks one after the other, and where the file has a byte, there
 * are 16: those of the 16 columns side by side. What the bytes of a block mean is written in ggml-common.h of llama.cpp and
 * quants.py of its package gguf. Of the latter's arithmetic only the last operation here rounds, in every kind: scales are
 * 11 bits long, or 18 with those of a part of the block, and codes at most 8. So it is the same number however it is
 * computed, but that zero may have the other sign.
 */
#ifndef OUTRIDER_STORED_H
#define OUTRIDER_STORED_H

#include "gemm.h"

#define UNPACKED 128 /* inputs at once: a multiple of SUMMED, and of what the kinds unpack together */

typedef uint8_t c16 __attribute__((vector_size(16), aligned(1))); /* a byte of every column */

/* Byte `at` of a block. */
INLINE c16 bytes_at(const char *block, int at) { return *(const c16 *)(block + at * PANEL); }

#if defined(__aarch64__)
/* A vector of 64 bytes would go through memory here. Conversions of integers are slow on some CPUs: instead, codes are put
 * into the bits of numbers. */
typedef struct {
    float32x4_t q[4];
} Weights;

#define QUARTERS UNROLL for (int i = 0; i < 4; i++)

/* Bytes of numbers, the lowest first. */
INLINE Weights joined(c16 first, c16 second, c16 third, c16 fourth) {
    const uint8x16_t a = (uint8x16_t)first, b = (uint8x16_t)second, c = (uint8x16_t)third, d = (uint8x16_t)fourth;
    const uint16x8_t lower[2] = {vreinterpretq_u16_u8(vzip1q_u8(a, b)), vreinterpretq_u16_u8(vzip2q_u8(a, b))};
    const uint16x8_t upper[2] = {vreinterpretq_u16_u8(vzip1q_u8(c, d)), vreinterpretq_u16_u8(vzip2q_u8(c, d))};
    Weights x;
    UNROLL for (int i = 0; i < 2; i++) {
        x.q[2 * i] = vreinterpretq_f32_u16(vzip1q_u16(lower[i], upper[i]));
        x.q[2 * i + 1] = vreinterpretq_f32_u16(vzip2q_u16(lower[i], upper[i]));
    }
    return x;
}

/* fp16 numbers, of which these are the lower and the upper bytes. */
INLINE Weights from_halves(c16 low, c16 high) {
    const float16x8_t first = vreinterpretq_f16_u8(vzip1q_u8((uint8x16_t)low, (uint8x16_t)high));
    const float16x8_t second = vreinterpretq_f16_u8(vzip2q_u8((uint8x16_t)low, (uint8x16_t)high));
    return (Weights){{vcvt_f32_f16(vget_low_f16(first)), vcvt_high_f32_f16(first), vcvt_f32_f16(vget_low_f16(second)),
                      vcvt_high_f32_f16(second)}};
}

INLINE Weights from_bf16(c16 low, c16 high) { return joined((c16){0}, (c16){0}, low, high); }

/* `unit` times signed bytes. */
INLINE Weights times(Weights unit, c16 bytes) {
    const int16x8_t halves[2] = {vmovl_s8(vget_low_s8((int8x16_t)bytes)), vmovl_high_s8((int8x16_t)bytes)};
    UNROLL for (int i = 0; i < 2; i++) {
        unit.q[2 * i] = vmulq_f32(unit.q[2 * i], vcvtq_f32_s32(vmovl_s16(vget_low_s16(halves[i]))));
        unit.q[2 * i + 1] = vmulq_f32(unit.q[2 * i + 1], vcvtq_f32_s32(vmovl_high_s16(halves[i])));
    }
    return unit;
}

INLINE Weights by(Weights x, float factor) {
    QUARTERS x.q[i] = vmulq_n_f32(x.q[i], factor);
    return x;
}

INLINE Weights with(Weights scale, Weights x, const Weights *rest) { /* scale * x + rest */
    QUARTERS {
        float32x4_t sum; /* from memory: a copy between registers would take the unit that computes */
        __asm__ volatile("ldr %q0, %1" : "=w"(sum) : "m"(rest->q[i]));
        x.q[i] = vfmaq_f32(sum, scale.q[i], x.q[i]);
    }
    return x;
}

/* scale * code + least, codes of so many bits (constant: 4 or 5): of the number, the two bytes that matter are looked up. */
INLINE Weights above(c16 codes, int bits, Weights scale, const Weights *least) {
    static const uint8_t third[32] = {0,    0x80, 0,    0x40, 0x80, 0xa0, 0xc0, 0xe0, 0,    0x10, 0x20,
                                      0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x88, 0x90, 0x98, 0xa0, 0xa8,
                                      0xb0, 0xb8, 0xc0, 0xc8, 0xd0, 0xd8, 0xe0, 0xe8, 0xf0, 0xf8};
    static const uint8_t fourth[32] = {0,    0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x41, 0x41, 0x41,
                                       0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41,
                                       0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41};
    const uint8x16_t at = (uint8x16_t)codes;
    uint8x16_t low, high;
    if (bits == 4) {
        low = vqtbl1q_u8(vld1q_u8(third), at), high = vqtbl1q_u8(vld1q_u8(fourth), at);
    } else {
        const uint8x16x2_t thirds = {{vld1q_u8(third), vld1q_u8(third + 16)}};
        const uint8x16x2_t fourths = {{vld1q_u8(fourth), vld1q_u8(fourth + 16)}};
        low = vqtbl2q_u8(thirds, at), high = vqtbl2q_u8(fourths, at);
    }
    __asm__("" : "+w"(low), "+w"(high)); /* or Clang 19 breaks where it joins tables with what follows */
    return with(scale, joined((c16){0}, (c16){0}, (c16)low, (c16)high), least);
}

/* scale * (code - middle), where `rest` is what rest_of says. 0x43000000 | code << 16 is 128 + code. */
INLINE Weights rest_of(Weights scale, int middle) { return by(scale, (float)-(128 + middle)); }
INLINE Weights about(c16 codes, int middle, Weights scale, const Weights *rest) {
    (void)middle;
    return with(scale, joined((c16){0}, (c16){0}, codes, (c16){0} + 0x43), rest);
}

/* scale * code of signed ones. 0x47000000 | (code + 128) << 8 is 32768 + 128 + code. */
INLINE Weights signed_rest_of(Weights scale) { return by(scale, -32896.0f); }
INLINE Weights about_zero(c16 codes, Weights scale, const Weights *rest) {
    return with(scale, joined((c16){0}, codes ^ 0x80, (c16){0}, (c16){0} + 0x47), rest);
}

INLINE void put(float *tile, int input, Weights x) { QUARTERS vst1q_f32(tile + input * PANEL + 4 * i, x.q[i]); }
#undef QUARTERS
#else
typedef v16 Weights;

INLINE h16 wide_bytes(c16 bytes) { return __builtin_convertvector(bytes, h16); }
INLINE v16 from_halves(c16 low, c16 high) {
    const u16v bits = __builtin_convertvector(wide_bytes(low) | wide_bytes(high) << 8, u16v), sign = (bits & 0x8000) << 16;
    const v16 size = (v16)((bits & 0x7fff) << 13) * splat(0x1p112f); /* the exponent starts elsewhere */
    const i16 endless = (i16)((bits & 0x7c00) == 0x7c00);
    return (v16)(sign | (u16v)choose(endless, (v16)((bits & 0x3ff) << 13 | 0x7f800000), size));
}
INLINE v16 from_bf16(c16 low, c16 high) { return widen(wide_bytes(low) | wide_bytes(high) << 8); }
INLINE v16 times(v16 unit, c16 bytes) { return unit * from_int8((b16)bytes); }
INLINE v16 by(v16 x, float factor) { return x * splat(factor); }
INLINE v16 above(c16 codes, int bits, v16 scale, const v16 *least) {
    (void)bits;
    return fused(scale, from_int8((b16)codes), *least);
}
INLINE v16 rest_of(v16 scale, int middle) {
    (void)middle;
    return scale;
}
INLINE v16 about(c16 codes, int middle, v16 scale, const v16 *rest) {
    (void)rest;
    return scale * from_int8((b16)(codes - (uint8_t)middle));
}
INLINE v16 signed_rest_of(v16 scale) { return scale; }
INLINE v16 about_zero(c16 codes, v16 scale, const v16 *rest) {
    (void)rest;
    return scale * from_int8((b16)codes);
}
INLINE void put(float *tile, int input, v16 weights) { *(v16 *)(tile + input * PANEL) = weights; }
#endif

/* Few enough times that the loop's code stays small. */
#define UNROLL_SOME _Pragma("GCC unroll 4")

/* Q4_0, Q4_1, Q5_0, Q5_1 (constants): 32 inputs. fp16 scale [and least number], [a bit of each], 4 bits of each. */
INLINE void block_small(const char *block, int bits, int least, float *tile) {
    const int high = least ? 4 : 2, low = high + (bits == 5 ? 4 : 0), middle = 1 << (bits - 1);
    const Weights scale = from_halves(bytes_at(block, 0), bytes_at(block, 1));
    const Weights add = least ? from_halves(bytes_at(block, 2), bytes_at(block, 3)) : rest_of(scale, middle);
    for (int byte = 0; byte < 16; byte += 8) {
        const c16 first = bytes_at(block, high + byte / 8), second = bytes_at(block, high + 2 + byte / 8);
        UNROLL for (int i = 0; i < 8; i++) {
            const c16 both = bytes_at(block, low + byte + i);
            c16 one = both & 15, other = both >> 4;
            if (bits == 5) {
                one |= (first >> (uint8_t)i & 1) << 4;
                other |= (second >> (uint8_t)i & 1) << 4;
            }
            put(tile, byte + i, least ? above(one, bits, scale, &add) : about(one, middle, scale, &add));
            put(tile, 16 + byte + i, least ? above(other, bits, scale, &add) : about(other, middle, scale, &add));
        }
    }
}

/* Q8_0: 32 inputs. fp16 scale, a byte of each. */
INLINE void block_8(const char *block, float *tile) {
    const Weights scale = from_halves(bytes_at(block, 0), bytes_at(block, 1)), rest = signed_rest_of(scale);
    UNROLL_SOME for (int i = 0; i < 32; i++) put(tile, i, about_zero(bytes_at(block, 2 + i), scale, &rest));
}

/* Q4_K and Q5_K: 64 of 256 inputs, the `group`-th. fp16 scales of scales and of least numbers, 6 bits of each of these for 32
 * inputs, [a bit of each input: those of 32], 4 bits of each: those of 64. */
INLINE void group_k(const char *block, int group, int bits, float *tile) {
    const Weights unit = from_halves(bytes_at(block, 0), bytes_at(block, 1));
    const Weights least_unit = from_halves(bytes_at(block, 2), bytes_at(block, 3));
    Weights scales[2], least[2];
    UNROLL for (int half = 0; half < 2; half++) {
        const int at = 2 * group + half; /* of 8: see get_scale_min of quants.py */
        c16 scale = bytes_at(block, 4 + at % 4), low = bytes_at(block, 8 + at % 4);
        if (at < 4) {
            scale &= 63, low &= 63;
        } else {
            const c16 more = bytes_at(block, 12 + at % 4);
            scale = (more & 15) | (scale >> 2 & 0x30);
            low = more >> 4 | (low >> 2 & 0x30);
        }
        scales[half] = times(unit, scale);
        least[half] = by(times(least_unit, low), -1.0f);
    }
    const int from = (bits == 5 ? 48 : 16) + 32 * group;
    UNROLL_SOME for (int i = 0; i < 32; i++) {
        const c16 both = bytes_at(block, from + i);
        c16 one = both & 15, other = both >> 4;
        if (bits == 5) {
            const c16 high = bytes_at(block, 16 + i) >> (uint8_t)(2 * group);
            one |= (high & 1) << 4;
            other |= (high & 2) << 3;
        }
        put(tile, i, above(one, bits, scales[0], &least[0]));
        put(tile, 32 + i, above(other, bits, scales[1], &least[1]));
    }
}

/* Q6_K: 128 of 256 inputs, the `half`-th. 4 bits of each: those of 64 and those of the next; 2 bits of each: those of 32, the
 * next, and so on; signed scales of 16 inputs; a fp16 scale of these. */
INLINE void half_6(const char *block, int half, float *tile) {
    const Weights unit = from_halves(bytes_at(block, 208), bytes_at(block, 209));
    for (int start = 0; start < 32; start += 16) {
        Weights scales[4], rest[4];
        UNROLL for (int j = 0; j < 4; j++) {
            scales[j] = times(unit, bytes_at(block, 192 + 8 * half + 2 * j + start / 16));
            rest[j] = rest_of(scales[j], 32);
        }
        UNROLL_SOME for (int i = 0; i < 16; i++) {
            const c16 first = bytes_at(block, 64 * half + start + i), second = bytes_at(block, 64 * half + 32 + start + i);
            const c16 high = bytes_at(block, 128 + 32 * half + start + i);
            const c16 codes[4] = {
                (first & 15) | (high & 0x03) << 4,
                (second & 15) | (high & 0x0c) << 2,
                first >> 4 | (high & 0x30),
                second >> 4 | (high & 0xc0) >> 2,
            };
            UNROLL for (int j = 0; j < 4; j++)
                put(tile, 32 * j + start + i, about(codes[j], 32, scales[j], &rest[j]));
        }
    }
}

/* Inputs and bytes of a block of a column. */
INLINE int block_inputs(int kind) {
    return kind == STORED_Q4_K || kind == STORED_Q5_K || kind == STORED_Q6_K ? 256 : kind >= STORED_Q8_0 ? 32 : 1;
}
INLINE int block_bytes(int kind) {
    switch (kind) {
        case STORED_F32: return 4;
        case STORED_F16:
        case STORED_BF16: return 2;
        case STORED_Q8_0: return 34;
        case STORED_Q4_0: return 18;
        case STORED_Q4_1: return 20;
        case STORED_Q5_0: return 22;
        case STORED_Q5_1: return 24;
        case STORED_Q4_K: return 144;
        case STORED_Q5_K: return 176;
        default: return 210;
    }
}

#define UNPACK(STEP, FUNCTION) \
    for (int k = 0; k < count; k += STEP, tile += STEP * PANEL) FUNCTION;
#define SMALL_BLOCK (block + (int64_t)k / 32 * size)
#define LARGE_BLOCK (block + (int64_t)(from + k) / 256 * size)

/* Inputs from..from + count of a panel, both multiples of 32, or of UNPACKED where blocks are large: fp32 [count][16]. */
static void unpack(const Strip *strip, int64_t panel, int depth, int from, int count, float *tile) {
    const int kind = strip->kind, inputs = block_inputs(kind), size = block_bytes(kind) * PANEL;
    const char *block = (const char *)strip->data + panel * (depth / inputs) * size;
    if (inputs < 256) block += (int64_t)(from / inputs) * size;
    switch (kind) {
        case STORED_F32: memcpy(tile, block, (size_t)count * size); break;
        case STORED_F16: UNPACK(1, put(tile, 0, from_halves(bytes_at(block, 2 * k), bytes_at(block, 2 * k + 1)))) break;
        case STORED_BF16: UNPACK(1, put(tile, 0, from_bf16(bytes_at(block, 2 * k), bytes_at(block, 2 * k + 1)))) break;
        case STORED_Q8_0: UNPACK(32, block_8(SMALL_BLOCK, tile)) break;
        case STORED_Q4_0: UNPACK(32, block_small(SMALL_BLOCK, 4, 0, tile)) break;
        case STORED_Q4_1: UNPACK(32, block_small(SMALL_BLOCK, 4, 1, tile)) break;
        case STORED_Q5_0: UNPACK(32, block_small(SMALL_BLOCK, 5, 0, tile)) break;
        case STORED_Q5_1: UNPACK(32, block_small(SMALL_BLOCK, 5, 1, tile)) break;
        case STORED_Q4_K: UNPACK(64, group_k(LARGE_BLOCK, (from + k) / 64 % 4, 4, tile)) break;
        case STORED_Q5_K: UNPACK(64, group_k(LARGE_BLOCK, (from + k) / 64 % 4, 5, tile)) break;
        case STORED_Q6_K: UNPACK(128, half_6(LARGE_BLOCK, (from + k) / 128 % 2, tile)) break;
    }
}

/* The same of a matrix' panel, which may be padding. */
static void unpack_panel(const Matrix *w, int panel, int from, int count, float *tile) {
    for (int i = 0; i < w->strip_count; i++) {
        const Strip *strip = w->strips + i;
        const int at = panel - strip->first;
        if (at >= 0 && at % strip->step == 0 && at / strip->step < strip->panels) {
            unpack(strip, at / strip->step, w->depth, from, count, tile);
            return;
        }
    }
    memset(tile, 0, (size_t)count * PANEL * sizeof(float));
}

/* Row `row` of a strip that has so many inputs, times `scale`. */
static void stored_row(const Strip *strip, int row, int inputs, float scale, float *out) {
    float tile[UNPACKED * PANEL] __attribute__((aligned(64)));
    for (int k = 0; k < inputs; k += UNPACKED) {
        const int count = inputs - k < UNPACKED ? inputs - k : UNPACKED;
        unpack(strip, row / PANEL, inputs, k, count, tile);
        for (int i = 0; i < count; i++) out[k + i] = tile[i * PANEL + row % PANEL] * scale;
    }
}

/* As gemm. */
static void gemm_stored(const Model *m, const Matrix *w, const void *x, int rows, Epilogue epilogue, void *y, int y_stride,
                        int thread, int threads) {
    float block[MOST_ROWS * PANEL_PAIR] __attribute__((aligned(64)));
    float tile[2][UNPACKED * PANEL] __attribute__((aligned(64)));
    const int pairs = w->columns / PANEL_PAIR;
    const int first = (int)((int64_t)pairs * thread / threads), last = (int)((int64_t)pairs * (thread + 1) / threads);
    for (int pair = first; pair < last; pair++) {
        for (int k = 0; k < w->depth; k += UNPACKED) {
            const int count = w->depth - k < UNPACKED ? w->depth - k : UNPACKED;
            for (int half = 0; half < 2; half++) unpack_panel(w, 2 * pair + half, k, count, tile[half]);
            pair_of((const char *)tile, sizeof tile[0], (const float *)x + k, w->depth, count, rows, 0, k > 0, block);
        }
        finish(w, pair, block, rows, FP32, epilogue, m->shape.activation, y, y_stride);
    }
}

#endif
