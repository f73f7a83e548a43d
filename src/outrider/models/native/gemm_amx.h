/* The matrix product on AMX: tiles of 16 rows x 32 inputs against tiles of 32 inputs x 16 columns, summed in fp32. */
#ifndef OUTRIDER_GEMM_AMX_H
#define OUTRIDER_GEMM_AMX_H

#include "gemm.h"

#include <immintrin.h>

#if defined(__clang__) /* where a function's instructions replace those of isa_vnni.c */
#define ALSO(FEATURES) __attribute__((target("arch=x86-64-v4,avx512vnni,avx512bf16," FEATURES)))
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

enum {
    TILE_BYTES = 1024, /* bf16: what one step over depth multiplies a panel with */
    TILE_LINES = TILE_BYTES / 64,
    STEPS_AHEAD = 4,
};

/* What is done between products of tiles, a little at a step: the tile unit is busy by itself meanwhile. */
typedef struct {
    /* Weights to ask for, well before they are needed: tile loads are too wide for the CPU to look ahead by itself. Into the L2
     * cache, from where stream loads take them past the small L1, which then keeps x. */
    const char *ahead;
    int lines; /* a step */
    /* Rows of a pair to finish. */
    const Matrix *w;
    const float *sums;
    void *y;
    int64_t row; /* of y, in numbers */
    int y_stride, pair, left;
    Epilogue epilogue;
    int activation;
} Meanwhile;

INLINE void ask_for_next(Meanwhile *also) {
    for (int line = 0; line < also->lines; line++, also->ahead += 64) _mm_prefetch(also->ahead, _MM_HINT_T1);
}

INLINE void finish_one(Meanwhile *also) {
    if (also->left <= 0) return;
    finish_row(also->w, also->pair, also->sums, BF16, also->epilogue, also->activation, also->y, also->row);
    also->sums += PANEL_PAIR;
    also->row += also->y_stride;
    also->left--;
}

/* Up to 32 rows (more than 16: `two`) against two panels. `fresh`: their weights come from memory; `begun`: the sums are added
 * to `out`; `also`: what is done meanwhile, or NULL. */
AMX INLINE void sweep(const char *first, const char *second, const char *x, int64_t stride, int steps, int two, int fresh,
                      int begun, Meanwhile *also, float *out) {
    const char *low = x + ROW_TILE * stride;
    const int64_t beyond = 2 * (second - first) - (int64_t)steps * TILE_BYTES;
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
    for (int k = 0; k < steps; k++, first += TILE_BYTES, second += TILE_BYTES) {
        if (fresh) { /* behind the end of these, the next pair */
            const int64_t ahead = STEPS_AHEAD * TILE_BYTES + (k + STEPS_AHEAD < steps ? 0 : beyond);
            for (int line = 0; line < TILE_BYTES; line += 64) _mm_prefetch(first + ahead + line, _MM_HINT_T1);
            for (int line = 0; line < TILE_BYTES; line += 64) _mm_prefetch(second + ahead + line, _MM_HINT_T1);
        }
        _tile_loadd(4, x + 64 * k, stride);
        _tile_stream_loadd(6, first, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_stream_loadd(7, second, 64);
        _tile_dpbf16ps(1, 4, 7);
        if (two) {
            _tile_loadd(5, low + 64 * k, stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        if (also) {
            if (!fresh) ask_for_next(also);
            finish_one(also);
            finish_one(also);
        }
    }
    _tile_stored(0, out, PANEL_PAIR * 4);
    _tile_stored(1, out + PANEL, PANEL_PAIR * 4);
    if (two) {
        _tile_stored(2, out + ROW_TILE * PANEL_PAIR, PANEL_PAIR * 4);
        _tile_stored(3, out + ROW_TILE * PANEL_PAIR + PANEL, PANEL_PAIR * 4);
    }
    if (also)
        while (also->left > 0) finish_one(also);
}

/* As pair_of of gemm.h, with x in bf16; tiles are configured for `rows`, at most 16. */
AMX static void pair_bf16(const char *panel, int64_t pitch, const void *x, int stride, int depth, int rows, int begun,
                          float *block) {
    (void)rows;
    sweep(panel, panel + pitch, x, (int64_t)stride * 2, depth / 32, 0, 1, begun, 0, block);
}

/* The pairs of `share`, 32 rows after the other. The first of them wait for a pair's weights, where nobody has asked for those
 * yet; all others ask for the next pair's, so that memory is never idle while there is something to multiply. Rows padded to
 * ROW_TILE must be readable. */
AMX static void pairs_bf16(const Model *m, const Matrix *w, const void *x, int rows, Epilogue epilogue, void *y, int y_stride,
                           Share *share) {
    enum { AT_A_TIME = 2 * ROW_TILE };
    float sums[2][AT_A_TIME * PANEL_PAIR] __attribute__((aligned(64)));
    const int steps = w->depth / 32, turns = (rows + AT_A_TIME - 1) / AT_A_TIME;
    const int64_t pitch = (int64_t)w->depth * PANEL * 2, stride = (int64_t)w->depth * 2;
    Meanwhile also = {.w = w, .y = y, .y_stride = y_stride, .epilogue = epilogue, .activation = m->shape.activation};
    int turn = 0, asked = -1;
    begin_bf16(rows);
    for (int pair; (pair = pool_next(share)) >= 0;) {
        const char *first = (const char *)w->data + 2 * pair * pitch, *second = first + pitch;
        const int there = pair == asked;
        also.ahead = second + pitch;
        also.lines = turns > 1 ? (2 * TILE_LINES + turns - 2 + there) / (turns - 1 + there) : 0;
        for (int r = 0; r < rows; r += AT_A_TIME, turn ^= 1) {
            const char *from = (const char *)x + r * stride;
            if (rows - r > ROW_TILE) {
                if (r == 0 && !there)
                    sweep(first, second, from, stride, steps, 1, 1, 0, &also, sums[turn]);
                else
                    sweep(first, second, from, stride, steps, 1, 0, 0, &also, sums[turn]);
            } else if (r == 0) {
                sweep(first, second, from, stride, steps, 0, 1, 0, &also, sums[turn]);
            } else {
                sweep(first, second, from, stride, steps, 0, 0, 0, &also, sums[turn]);
            }
            also.sums = sums[turn];
            also.row = (int64_t)r * y_stride;
            also.pair = pair;
            also.left = rows - r < AT_A_TIME ? rows - r : AT_A_TIME;
        }
        asked = turns > 1 ? pair + 1 : -1;
    }
    while (also.left > 0) finish_one(&also);
}

#endif
