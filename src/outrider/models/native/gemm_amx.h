/* The matrix product on AMX: tiles of 16 rows x 32 inputs against tiles of 32 inputs x 16 columns, summed in fp32. */
#ifndef OUTRIDER_GEMM_AMX_H
#define OUTRIDER_GEMM_AMX_H

#include "gemm.h"

#ifdef WITH_AMX
#include <immintrin.h>

#define AMX __attribute__((target("amx-tile,amx-bf16")))

typedef struct __attribute__((packed, aligned(64))) {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_per_row[16];
    uint8_t rows[16];
} TileConfig;

/* Tiles 0-3 sum up to 32 rows x 32 columns, 4 and 5 hold x, 6 and 7 the two panels. A tile has as many rows as there
 * are: fewer cost less, and no row's sums depend on another's. */
AMX static void amx_configure(int rows) {
    const uint8_t top = rows < ROW_TILE ? (uint8_t)rows : ROW_TILE;
    const uint8_t low = rows > ROW_TILE && rows < 2 * ROW_TILE ? (uint8_t)(rows - ROW_TILE) : ROW_TILE;
    /* volatile: the intrinsic does not tell the compiler that it reads all of it */
    volatile TileConfig config = {
        .palette = 1,
        .bytes_per_row = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {top, top, low, low, top, low, ROW_TILE, ROW_TILE},
    };
    _tile_loadconfig((const void *)&config);
}

AMX static void amx_release(void) { _tile_release(); }

#define STEP_BYTES 2048 /* two bf16 tiles: what one step over depth multiplies with */

/* Ask for weights well before they are needed: tile loads are too wide for the CPU to look ahead by itself. Into the L2
 * cache, from where stream loads take them past the small L1, which then keeps x. */
INLINE void fetch_ahead(const char *at, int bytes) {
    enum { DISTANCE = 8192 };
    for (int line = 0; line < bytes; line += 64) _mm_prefetch(at + DISTANCE + line, _MM_HINT_T1);
}

/* One step's int8 weights as bf16. An integer below 256 has at most eight significant bits: the lower half of its float
 * is zero, so two floats make a pair of bf16 by dropping those halves. */
INLINE void widen_step(const char *from, uint16_t *to) {
    const b16 *bytes = (const b16 *)from;
    u16v *pairs = (u16v *)to;
    UNROLL for (int i = 0; i < 32; i++)
        pairs[i] = (u16v)from_int8(bytes[2 * i + 1]) | (u16v)from_int8(bytes[2 * i]) >> 16;
}

/* Up to 32 rows against one pair of panels. int8 weights are widened on the way into `widened`, one step ahead of the
 * products, unless an earlier call did (`fresh` 0); step k lies at index k & mask there. */
AMX INLINE void sweep(const char *panels, const char *x, int64_t stride, int steps, int two, int fresh, int int8,
                      uint16_t *widened, int mask, float *out) {
    const char *low = x + ROW_TILE * stride;
    _tile_zero(0);
    _tile_zero(1);
    if (two) {
        _tile_zero(2);
        _tile_zero(3);
    }
    if (int8 && fresh) widen_step(panels, widened);
    for (int k = 0; k < steps; k++) {
        const char *b = panels + (int64_t)STEP_BYTES * k;
        if (int8) {
            b = (const char *)widened + STEP_BYTES * (k & mask);
            if (fresh) {
                const char *next = panels + STEP_BYTES / 2 * (k + 1);
                fetch_ahead(next, STEP_BYTES / 2);
                if (k + 1 < steps) widen_step(next, widened + STEP_BYTES / 2 * ((k + 1) & mask));
            }
        } else if (fresh) {
            fetch_ahead(b, STEP_BYTES);
        }
        _tile_loadd(4, x + 64 * k, stride);
        _tile_stream_loadd(6, b, 64);
        _tile_stream_loadd(7, b + STEP_BYTES / 2, 64);
        if (two) _tile_loadd(5, low + 64 * k, stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (two) {
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, out, PANEL_PAIR * 4);
    _tile_stored(1, out + PANEL, PANEL_PAIR * 4);
    if (two) {
        _tile_stored(2, out + ROW_TILE * PANEL_PAIR, PANEL_PAIR * 4);
        _tile_stored(3, out + ROW_TILE * PANEL_PAIR + PANEL, PANEL_PAIR * 4);
    }
}

AMX INLINE void rows_amx(const char *panels, const char *x, int64_t stride, int steps, int rows, int int8,
                         uint16_t *widened, float *block) {
    const int mask = rows > 2 * ROW_TILE ? -1 : 3; /* read once: a small ring that stays in the L1 cache */
    for (int r = 0; r < rows; r += 2 * ROW_TILE) {
        const char *from = x + r * stride;
        float *out = block + r * PANEL_PAIR;
        if (rows - r > ROW_TILE) {
            if (r == 0)
                sweep(panels, from, stride, steps, 1, 1, int8, widened, mask, out);
            else
                sweep(panels, from, stride, steps, 1, 0, int8, widened, mask, out);
        } else if (r == 0) {
            sweep(panels, from, stride, steps, 0, 1, int8, widened, mask, out);
        } else {
            sweep(panels, from, stride, steps, 0, 0, int8, widened, mask, out);
        }
    }
}

AMX static void pair_amx(const Matrix *w, int pair, const char *x, int rows, uint16_t *widened, float *block) {
    const int64_t stride = (int64_t)w->depth * 2;
    if (w->scales)
        rows_amx(pair_of(w, pair, STORED_INT8), x, stride, w->depth / 32, rows, 1, widened, block);
    else
        rows_amx(pair_of(w, pair, STORED_BF16), x, stride, w->depth / 32, rows, 0, widened, block);
}
#else
static void amx_configure(int rows) { (void)rows; }
static void amx_release(void) {}
static void pair_amx(const Matrix *w, int pair, const char *x, int rows, uint16_t *widened, float *block) {
    (void)w, (void)pair, (void)x, (void)rows, (void)widened, (void)block;
}
#endif

#endif
