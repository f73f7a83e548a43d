/* The matrix product on AMX: tiles of 16 rows x 32 inputs against tiles of 32 inputs x 16 columns, summed in fp32. */
#ifndef OUTRIDER_GEMM_AMX_H
#define OUTRIDER_GEMM_AMX_H

#include "gemm.h"

#include <immintrin.h>

#if defined(__clang__) /* where a function's instructions replace those of isa_vnni.c */
#define ALSO(FEATURES) __attribute__((target("arch=x86-64-v4,avx512vnni," FEATURES)))
#else
#define ALSO(FEATURES) __attribute__((target(FEATURES)))
#endif
#define AMX ALSO("amx-tile,amx-bf16")

typedef struct __attribute__((packed, aligned(64))) {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_per_row[16];
    uint8_t rows[16];
} TileConfig;

/* Tiles 0-3 sum up to 32 rows x 32 columns, 4 and 5 hold x, 6 and 7 the two panels. A tile has as many rows as there
 * are: fewer cost less, and no row's sums depend on another's. */
AMX static void begin_bf16(int rows) {
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

#define STEP_BYTES 1024 /* a bf16 tile: what one step over depth multiplies a panel with */

#define STEPS_AHEAD 4

/* Ask for weights well before they are needed: tile loads are too wide for the CPU to look ahead by itself. Into the L2
 * cache, from where stream loads take them past the small L1, which then keeps x. */
INLINE void fetch_ahead(const char *at) {
    for (int line = 0; line < STEP_BYTES; line += 64) _mm_prefetch(at + line, _MM_HINT_T1);
}

/* Up to 32 rows (more than 16: `two`) against two panels. `fresh`: they come from memory; `begun`: the sums are added to `out`. */
AMX INLINE void sweep(const char *first, const char *second, const char *x, int64_t stride, int steps, int two, int fresh,
                      int begun, float *out) {
    const char *low = x + ROW_TILE * stride;
    const int64_t beyond = 2 * (second - first) - (int64_t)steps * STEP_BYTES;
    if (begun) {
        _tile_loadd(0, out, PANEL_PAIR * 4);
        _tile_loadd(1, out + PANEL, PANEL_PAIR * 4);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    if (two) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int k = 0; k < steps; k++, first += STEP_BYTES, second += STEP_BYTES) {
        if (fresh) { /* behind the end of these, the next pair */
            const int64_t ahead = STEPS_AHEAD * STEP_BYTES + (k + STEPS_AHEAD < steps ? 0 : beyond);
            fetch_ahead(first + ahead);
            fetch_ahead(second + ahead);
        }
        _tile_loadd(4, x + 64 * k, stride);
        _tile_stream_loadd(6, first, 64);
        _tile_stream_loadd(7, second, 64);
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

/* As pair_of of gemm.h, with x in bf16; tiles are configured for `rows`. `begun`: of at most 16. */
AMX static void pair_bf16(const char *panel, int64_t pitch, const void *x, int stride, int depth, int rows, int begun,
                          float *block) {
    const char *first = panel, *second = panel + pitch;
    const int steps = depth / 32;
    const int64_t row = (int64_t)stride * 2;
    if (begun) {
        sweep(first, second, x, row, steps, 0, 1, 1, block);
        return;
    }
    for (int r = 0; r < rows; r += 2 * ROW_TILE) {
        const char *from = (const char *)x + r * row;
        float *out = block + r * PANEL_PAIR;
        if (rows - r > ROW_TILE) {
            if (r == 0)
                sweep(first, second, from, row, steps, 1, 1, 0, out);
            else
                sweep(first, second, from, row, steps, 1, 0, 0, out);
        } else if (r == 0) {
            sweep(first, second, from, row, steps, 0, 1, 0, out);
        } else {
            sweep(first, second, from, row, steps, 0, 0, 0, out);
        }
    }
}

#endif
