/* Blocks of quantised GGUF files: what their bytes mean, written in ggml-common.h of llama.cpp and quants.py of its package
 * gguf. A weight is unit * step * (code - middle), or unit * step * code + low_unit * low: unit and low_unit belong to the
 * block, step and low to a part of it, of 32 or 16 weights. Blocks of 32 have no units, those of 256 have integer steps.
 */
#ifndef OUTRIDER_BLOCKS_H
#define OUTRIDER_BLOCKS_H

#include "decoder.h"

#include <string.h>

typedef struct {
    int inputs, bytes; /* of a block */
    int bits;          /* of a code; 0: no code, but a number */
    int part;          /* weights that share a step */
    int lows;          /* whether parts have a low */
} Kind;

static inline __attribute__((always_inline)) Kind kind_of(int kind) {
    switch (kind) {
        case STORED_F32: return (Kind){1, 4, 0, 1, 0};
        case STORED_F16:
        case STORED_BF16: return (Kind){1, 2, 0, 1, 0};
        case STORED_Q8_0: return (Kind){32, 34, 8, 32, 0};
        case STORED_Q4_0: return (Kind){32, 18, 4, 32, 0};
        case STORED_Q4_1: return (Kind){32, 20, 4, 32, 1};
        case STORED_Q5_0: return (Kind){32, 22, 5, 32, 0};
        case STORED_Q5_1: return (Kind){32, 24, 5, 32, 1};
        case STORED_Q4_K: return (Kind){256, 144, 4, 32, 1};
        case STORED_Q5_K: return (Kind){256, 176, 5, 32, 1};
        default: return (Kind){256, 210, 6, 16, 0};
    }
}

static inline float half_at(const uint8_t *at) {
    const uint32_t bits = at[0] | (uint32_t)at[1] << 8, size = (bits & 0x7fff) << 13;
    float x;
    memcpy(&x, &size, 4);
    x *= 0x1p112f; /* the exponent starts elsewhere */
    uint32_t found;
    memcpy(&found, &x, 4);
    if ((bits & 0x7c00) == 0x7c00) found = size | 0x7f800000u;
    found |= (bits & 0x8000) << 16;
    memcpy(&x, &found, 4);
    return x;
}

/* The codes of a block, without sign: those of Q8_0 plus 128. */
static inline void block_codes(const uint8_t *block, int kind, uint8_t *codes) {
    const int bits = kind_of(kind).bits;
    if (kind == STORED_Q8_0) {
        for (int i = 0; i < 32; i++) codes[i] = block[2 + i] ^ 0x80;
    } else if (kind == STORED_Q6_K) { /* of each 4 bits, those of 64 and of the next; 2 bits, those of 32 and so on */
        for (int half = 0; half < 2; half++) {
            const uint8_t *low = block + 64 * half, *high = block + 128 + 32 * half;
            uint8_t *to = codes + 128 * half;
            for (int i = 0; i < 32; i++) {
                to[i] = (low[i] & 15) | (high[i] & 0x03) << 4;
                to[32 + i] = (low[32 + i] & 15) | (high[i] & 0x0c) << 2;
                to[64 + i] = low[i] >> 4 | (high[i] & 0x30);
                to[96 + i] = low[32 + i] >> 4 | (high[i] & 0xc0) >> 2;
            }
        }
    } else if (kind_of(kind).inputs == 256) { /* [a bit of each: those of 32], 4 bits of each: those of 64 */
        const uint8_t *low = block + (bits == 5 ? 48 : 16), *high = block + 16;
        for (int group = 0; group < 4; group++, low += 32, codes += 64)
            for (int i = 0; i < 32; i++) {
                codes[i] = low[i] & 15, codes[32 + i] = low[i] >> 4;
                if (bits == 5) {
                    codes[i] |= (high[i] >> (2 * group) & 1) << 4;
                    codes[32 + i] |= (high[i] >> (2 * group + 1) & 1) << 4;
                }
            }
    } else { /* [a bit of each], 4 bits of each: those of 16 and of the next */
        const uint8_t *high = block + (kind_of(kind).lows ? 4 : 2), *low = high + (bits == 5 ? 4 : 0);
        for (int i = 0; i < 16; i++) {
            codes[i] = low[i] & 15, codes[16 + i] = low[i] >> 4;
            if (bits == 5) {
                codes[i] |= (high[i / 8] >> i % 8 & 1) << 4;
                codes[16 + i] |= (high[2 + i / 8] >> i % 8 & 1) << 4;
            }
        }
    }
}

/* Of a large block with lows: step and low of its `at`-th part, of 8, in 6 bits each. */
static inline void block_part(const uint8_t *block, int at, uint8_t *step, uint8_t *low) {
    const uint8_t *from = block + 4;
    if (at < 4) {
        *step = from[at] & 63, *low = from[4 + at] & 63;
    } else {
        *step = (from[4 + at] & 15) | (from[at - 4] >> 6) << 4;
        *low = from[4 + at] >> 4 | (from[at] >> 6) << 4;
    }
}

/* The numbers of a row of a file, which rounds nothing but the last addition of a low. */
static inline void row_of(const uint8_t *row, int kind, int inputs, float *out) {
    const Kind k = kind_of(kind);
    uint8_t codes[256];
    for (int start = 0; start < inputs; start += k.inputs, row += k.bytes) {
        if (!k.bits) {
            const uint32_t wide = (uint32_t)row[0] << 16 | (uint32_t)row[1] << 24;
            if (kind == STORED_F16)
                out[start] = half_at(row);
            else
                memcpy(out + start, kind == STORED_F32 ? (const void *)row : (const void *)&wide, 4);
            continue;
        }
        block_codes(row, kind, codes);
        for (int first = 0; first < k.inputs; first += k.part) {
            float step = half_at(kind == STORED_Q6_K ? row + 208 : row), low = 0.0f;
            if (kind == STORED_Q6_K) {
                step *= (float)(int8_t)row[192 + first / 16];
            } else if (k.inputs == 256) {
                uint8_t scale, least;
                block_part(row, first / 32, &scale, &least);
                step *= (float)scale, low = -half_at(row + 2) * (float)least;
            } else if (k.lows) {
                low = half_at(row + 2);
            }
            const uint8_t *part = codes + first;
            float *to = out + start + first;
            if (k.lows)
                for (int i = 0; i < k.part; i++) to[i] = (float)part[i] * step + low;
            else
                for (int i = 0; i < k.part; i++) to[i] = (float)(part[i] - (1 << (k.bits - 1))) * step;
        }
    }
}

#endif
