/* Where the bytes of a panel of stored weights lie; what they are is said in stored.h. */
#ifndef OUTRIDER_STORED_LAYOUT_H
#define OUTRIDER_STORED_LAYOUT_H

#include "blocks.h"

#define SPAN 64 /* inputs whose codes lie together */
#define SPANS 2 /* of them in a block of inputs (BLOCK of gemm_int8.h) */

/* Of a panel's columns in a block of inputs. */
typedef struct {
    const uint8_t *spans;  /* one or two: codes, steps [parts][16] (fp16; large blocks: bytes), [lows, where these are fp16] */
    const uint8_t *lows;   /* of large blocks: bytes [16][4] */
    const uint8_t *scales; /* of large blocks: fp16 [16], [and those of lows] */
} Chunk;

static inline __attribute__((always_inline)) int code_bytes(int kind) { return SPAN * PANEL * kind_of(kind).bits / 8; }

static inline __attribute__((always_inline)) int span_bytes(int kind) {
    const Kind k = kind_of(kind);
    const int steps = SPAN / k.part * PANEL;
    return code_bytes(kind) + (k.inputs == 256 ? steps : steps * 2 * (1 + k.lows));
}

/* Of a block of inputs in a large one's two. */
static inline __attribute__((always_inline)) int chunk_bytes(int kind) {
    const Kind k = kind_of(kind);
    return SPANS * span_bytes(kind) + (k.inputs == 256 && k.lows ? 4 * PANEL : 0);
}

/* Of a large block. */
static inline __attribute__((always_inline)) int group_bytes(int kind) {
    return 2 * chunk_bytes(kind) + 2 * PANEL * (1 + kind_of(kind).lows);
}

static inline __attribute__((always_inline)) Chunk chunk_at(const uint8_t *panel, int kind, int block) {
    if (kind_of(kind).inputs != 256) return (Chunk){panel + (int64_t)block * chunk_bytes(kind), 0, 0};
    const uint8_t *group = panel + (int64_t)(block / 2) * group_bytes(kind), *at = group + block % 2 * chunk_bytes(kind);
    return (Chunk){at, at + SPANS * span_bytes(kind), group + 2 * chunk_bytes(kind)};
}

static inline int64_t panel_bytes(int kind, int depth) {
    const Kind k = kind_of(kind);
    if (!k.bits) return (int64_t)depth * PANEL * k.bytes;
    return k.inputs == 256 ? (int64_t)depth / 256 * group_bytes(kind) : (int64_t)depth / SPAN * span_bytes(kind);
}

#endif
