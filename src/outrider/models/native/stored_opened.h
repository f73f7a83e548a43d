/* Products of stored.h where a block is unpacked first, once for all rows. */
#ifndef OUTRIDER_STORED_OPENED_H
#define OUTRIDER_STORED_OPENED_H

/* A block of a panel: whole bytes, steps and lows as floats. */
typedef struct {
    int8_t weights[BLOCK * PANEL];
    float steps[PARTS_16 * PANEL], lows[PARTS_16 * PANEL];
    float unit[PANEL], low_unit[PANEL];
} Opened;

#if defined(__aarch64__)
#include "stored_neon.h"
#else
#include "stored_plain.h"
#endif

typedef uint8_t Codes __attribute__((vector_size(16), aligned(1)));

/* The bytes of 64 inputs from their codes. */
INLINE void open_codes(const uint8_t *span, int bits, int8_t *weights) {
#define FOUR(i) (*(const Codes *)(from + (i) * 64))
#define PUT(i, x) *(Codes *)(to + (i) * 64) = (x)
    for (int lane = 0; lane < 64; lane += sizeof(Codes)) {
        const uint8_t *from = span + lane;
        uint8_t *to = (uint8_t *)weights + lane;
        if (bits == 4)
            UNROLL for (int i = 0; i < 8; i++) {
                PUT(i, FOUR(i) << 4);
                PUT(8 + i, FOUR(i) & 0xf0);
            }
        if (bits == 5)
            for (int part = 0; part < 2; part++, from += 5 * 64, to += 8 * 64) {
                UNROLL for (int i = 0; i < 5; i++) PUT(i, FOUR(i) & 0xf8);
                PUT(5, FOUR(0) << 5 | (FOUR(1) & 6) << 2);
                PUT(6, FOUR(2) << 5 | (FOUR(3) & 6) << 2);
                PUT(7, FOUR(4) << 5 | (FOUR(1) & 1) << 4 | (FOUR(3) & 1) << 3);
            }
        if (bits == 6)
            for (int part = 0; part < 4; part++, from += 3 * 64, to += 4 * 64) {
                UNROLL for (int i = 0; i < 3; i++) PUT(i, FOUR(i) & 0xfc);
                PUT(3, FOUR(0) << 6 | (FOUR(1) & 3) << 4 | (FOUR(2) & 3) << 2);
            }
        if (bits == 8) UNROLL for (int i = 0; i < 16; i++) PUT(i, FOUR(i));
    }
#undef FOUR
#undef PUT
}

/* `size` inputs of a chunk of this kind (constant). */
INLINE void open_chunk(Chunk chunk, int kind, int size, Opened *to) {
    const Kind k = kind_of(kind);
    const int parts = SPAN / k.part, large = k.inputs == 256;
    for (int at = 0; at < size; at += SPAN) {
        const uint8_t *span = chunk.spans + at / SPAN * span_bytes(kind), *steps = span + code_bytes(kind);
        open_codes(span, k.bits, to->weights + at * PANEL);
        for (int part = 0; part < parts; part++) {
            const int which = at / k.part + part;
            v16 step, low = splat(0.0f);
            if (large) {
                const b16 bytes = *(const b16 *)(steps + part * PANEL);
                step = from_int8(k.lows ? bytes : bytes ^ (int8_t)-128);
                for (int c = 0; k.lows && c < PANEL; c++) low[c] = chunk.lows[4 * c + which];
            } else {
                step = halves_at(steps + 2 * part * PANEL);
                if (k.lows) low = halves_at(steps + 2 * (parts + part) * PANEL);
            }
            *(v16 *)(to->steps + which * PANEL) = step;
            *(v16 *)(to->lows + which * PANEL) = low;
        }
    }
    const v16 whole = splat(1.0f / (float)(1 << (8 - k.bits)));
    *(v16 *)to->unit = large ? halves_at(chunk.scales) * whole : whole;
    if (k.lows) *(v16 *)to->low_unit = large ? -halves_at(chunk.scales + 2 * PANEL) : splat(1.0f);
}

static void open_any(const uint8_t *panel, int kind, int block, int size, Opened *to) {
#define OPEN(KIND) \
    case KIND: open_chunk(chunk_at(panel, KIND, block), KIND, size, to); break;
    switch (kind) {
        OPEN(STORED_Q8_0)
        OPEN(STORED_Q4_0)
        OPEN(STORED_Q4_1)
        OPEN(STORED_Q5_0)
        OPEN(STORED_Q5_1)
        OPEN(STORED_Q4_K)
        OPEN(STORED_Q5_K)
        OPEN(STORED_Q6_K)
    }
#undef OPEN
}

/* All rows against an opened block, added to out[r * PANEL_PAIR]. The number of rows must be a constant where they are
 * multiplied. */
static void rows_opened(const Opened *w, Kind k, const Inputs *x, int size, int rows, float *out) {
#define ROWS(COUNT)                                               \
    case COUNT:                                                   \
        if (k.part == 16)                                         \
            tile_opened(w, some, 16, 0, size, COUNT, to);         \
        else if (k.lows)                                          \
            tile_opened(w, some, 32, 1, size, COUNT, to);         \
        else                                                      \
            tile_opened(w, some, 32, 0, size, COUNT, to);         \
        break;
    for (int r = 0, count; r < rows; r += count) {
        const Inputs *some = x + r;
        float *to = out + r * PANEL_PAIR;
        count = rows_at_once(rows - r, OPENED_ROWS);
        if (!all_zeros(some, count)) switch (count) {
                ROWS(1)
                ROWS(2)
                ROWS(3)
                ROWS(4)
            }
    }
#undef ROWS
}

/* All rows against a panel. */
static void panel_stored(const uint8_t *panel, int kind, const Rounded *x, int depth, float *out) {
    Opened opened;
    const int rows = x->rows;
    for (int r = 0; r < rows; r++) *(v16 *)(out + r * PANEL_PAIR) = splat(0.0f);
    for (int start = 0, block = 0; start < depth; start += BLOCK, block++) {
        const int size = block_size(depth, start);
        open_any(panel, kind, block, size, &opened);
        rows_opened(&opened, kind_of(kind), x->coarse + block * rows, size, rows, out);
        rows_opened(&opened, kind_of(kind), x->fine + block * rows, size, rows, out);
    }
}

#endif
