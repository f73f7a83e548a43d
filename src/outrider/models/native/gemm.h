/* y[rows, columns] = x[rows, depth] · W^T for few rows and weights that stream from memory once.
 *
 * W is packed in pairs of panels of 16 output columns, the unit threads share out, in the order a pass reads it:
 * fp32 [pair][depth][panel][16], bf16 [pair][depth/32][panel][16][16][2], where [16][16][2] is a tile of AMX. Every output element is one running sum over depth in
 * increasing order, so its bits depend neither on the number of rows nor on the thread that computed it. Which kernel runs
 * depends on the CPU alone.
 */
#ifndef OUTRIDER_GEMM_H
#define OUTRIDER_GEMM_H

#include "decoder.h"
#include "vector.h"

/* What becomes of a pair's 32 columns of up to 32 rows. */
typedef enum {
    PLAIN,  /* to fp32 y, bias added */
    GATED,  /* the pair is 16 gate and the matching 16 up columns: act(gate) * up, to the next product's input */
} Epilogue;

#define KERNEL_ROWS 8 /* rows the generic kernel keeps in registers */
#define SUMMED 64

/* `block` holds fp32 results [rows][32] of one pair of panels. */
static void finish(const Matrix *w, int pair, const float *block, int rows, int bf16, Epilogue epilogue,
                          int activation, void *y, int y_stride) {
    const float *bias = w->bias ? w->bias + pair * PANEL_PAIR : 0;
    for (int r = 0; r < rows; r++) {
        v16 first = *(const v16 *)(block + r * PANEL_PAIR), second = *(const v16 *)(block + r * PANEL_PAIR + PANEL);
        if (bias) {
            first += *(const v16 *)bias;
            second += *(const v16 *)(bias + PANEL);
        }
        if (epilogue == GATED) {
            v16 gate = activation == 0 ? silu(first) : gelu_tanh(first);
            store(y, (int64_t)r * y_stride + pair * PANEL, gate * second, bf16);
        } else {
            store(y, (int64_t)r * y_stride + pair * PANEL_PAIR, first, 0);
            store(y, (int64_t)r * y_stride + pair * PANEL_PAIR + PANEL, second, 0);
        }
    }
}

/* Any CPU: `count` (constant, at most KERNEL_ROWS) rows against one pair of panels. Sums run over SUMMED terms at a time
 * and then over those sums: in fp32 that halves the rounding error of one long sum. */
INLINE void kernel(const char *panels, const char *x, int depth, int count, int bf16, float *block) {
    const int64_t stride = (int64_t)depth * (bf16 ? 2 : 4);
    UNROLL for (int r = 0; r < count; r++)
        *(v16 *)(block + r * PANEL_PAIR) = *(v16 *)(block + r * PANEL_PAIR + PANEL) = splat(0.0f);
    for (int start = 0; start < depth; start += SUMMED) {
        const int stop = depth < start + SUMMED ? depth : start + SUMMED;
        v16 first[KERNEL_ROWS], second[KERNEL_ROWS];
        UNROLL for (int r = 0; r < count; r++) first[r] = second[r] = splat(0.0f);
        if (bf16) {
            for (int k = start / 2; k < stop / 2; k++) {
                const u16v *a = (const u16v *)panels + k / 16 * 32 + k % 16, *b = a + 16;
                v16 a0 = (v16)(*a << 16), a1 = (v16)(*a & 0xffff0000u);
                v16 b0 = (v16)(*b << 16), b1 = (v16)(*b & 0xffff0000u);
                UNROLL for (int r = 0; r < count; r++) {
                    const uint16_t *row = (const uint16_t *)(x + r * stride) + 2 * k;
                    v16 x0 = splat(bf16_to_float(row[0])), x1 = splat(bf16_to_float(row[1]));
                    first[r] = first[r] + x0 * a0;
                    second[r] = second[r] + x0 * b0;
                    first[r] = first[r] + x1 * a1;
                    second[r] = second[r] + x1 * b1;
                }
            }
        } else {
            const v16 *a = (const v16 *)panels;
            for (int k = start; k < stop; k++)
                UNROLL for (int r = 0; r < count; r++) {
                    v16 value = splat(((const float *)(x + r * stride))[k]);
                    first[r] = first[r] + value * a[2 * k];
                    second[r] = second[r] + value * a[2 * k + 1];
                }
        }
        UNROLL for (int r = 0; r < count; r++) {
            v16 *total = (v16 *)(block + r * PANEL_PAIR);
            total[0] = total[0] + first[r];
            total[1] = total[1] + second[r];
        }
    }
}

static void pair_generic(const Matrix *w, int pair, const char *x, int rows, int bf16, float *block) {
    const int64_t stride = (int64_t)w->depth * (bf16 ? 2 : 4);
    const char *panels = (const char *)w->data + pair * stride * PANEL_PAIR;
    /* Several widths, so that few rows do not pay for many; all sum in the same order. */
#define ROWS(COUNT)                                                                                        \
    for (; rows - r >= COUNT; r += COUNT)                                                                   \
        if (bf16)                                                                                          \
            kernel(panels, x + r * stride, w->depth, COUNT, 1, block + r * PANEL_PAIR);        \
        else                                                                                               \
            kernel(panels, x + r * stride, w->depth, COUNT, 0, block + r * PANEL_PAIR);
    int r = 0;
    ROWS(8)
    ROWS(4)
    ROWS(2)
    ROWS(1)
#undef ROWS
}

#ifdef WITH_AMX
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18
#define AMX __attribute__((target("amx-tile,amx-bf16")))

/* CPUID.7.0:EDX says the CPU has tiles and bf16 products; the kernel must also let this process use them. */
static int have_amx(void) {
    static int known = -1;
    if (known < 0) {
        unsigned a, b, c, d = 0;
        int cpu = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
        known = cpu && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
    }
    return known;
}

/* Eight tiles of 16 rows x 64 bytes. Static: the intrinsic does not tell the compiler that it reads all of it. */
static const struct __attribute__((packed, aligned(64))) {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_per_row[16];
    uint8_t rows[16];
} TILES = {
    .palette = 1,
    .bytes_per_row = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {ROW_TILE, ROW_TILE, ROW_TILE, ROW_TILE, ROW_TILE, ROW_TILE, ROW_TILE, ROW_TILE},
};

AMX static void configure(void) { _tile_loadconfig(&TILES); }

AMX static void unconfigure(void) { _tile_release(); }

/* Ask for weights well before they are needed: tile loads are too wide for the CPU to look ahead by itself. */
static inline void fetch_ahead(const char *at) {
    enum { AHEAD = 8192 };
    for (int line = 0; line < 2048; line += 64) __builtin_prefetch(at + AHEAD + line);
}

/* Tiles 0-3 sum up to 32 rows x 32 columns; 4, 5 hold x, 6, 7 the two panels. */
AMX static void pair_amx(const Matrix *w, int pair, const char *x, int rows, float *block) {
    const int64_t stride = (int64_t)w->depth * 2;
    const char *panels = (const char *)w->data + pair * stride * PANEL_PAIR;
    for (int r = 0; r < rows; r += 2 * ROW_TILE) {
        const char *top = x + r * stride, *low = top + ROW_TILE * stride;
        float *out = block + r * PANEL_PAIR;
        _tile_zero(0);
        _tile_zero(1);
        if (rows - r > ROW_TILE) {
            _tile_zero(2);
            _tile_zero(3);
            for (int k = 0; k < w->depth / 32; k++) {
                if (r == 0) fetch_ahead(panels + 2048 * k);
                _tile_loadd(4, top + 64 * k, stride);
                _tile_loadd(6, panels + 2048 * k, 64);
                _tile_loadd(7, panels + 2048 * k + 1024, 64);
                _tile_loadd(5, low + 64 * k, stride);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(2, out + ROW_TILE * PANEL_PAIR, PANEL_PAIR * 4);
            _tile_stored(3, out + ROW_TILE * PANEL_PAIR + PANEL, PANEL_PAIR * 4);
        } else {
            for (int k = 0; k < w->depth / 32; k++) {
                if (r == 0) fetch_ahead(panels + 2048 * k);
                _tile_loadd(4, top + 64 * k, stride);
                _tile_loadd(6, panels + 2048 * k, 64);
                _tile_loadd(7, panels + 2048 * k + 1024, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
            }
        }
        _tile_stored(0, out, PANEL_PAIR * 4);
        _tile_stored(1, out + PANEL, PANEL_PAIR * 4);
    }
}

/* Prepare this thread and process; says whether AMX is used. */
static int gemm_prepare(void) {
    if (have_amx()) configure();
    return have_amx();
}

static void gemm_release(void) {
    if (have_amx()) unconfigure();
}
#else
static int have_amx(void) { return 0; }
static void pair_amx(const Matrix *w, int pair, const char *x, int rows, float *block) {
    (void)w, (void)pair, (void)x, (void)rows, (void)block;
}
static int gemm_prepare(void) { return 0; }
static void gemm_release(void) {}
#endif

/* The share of `thread` of `threads`. x has rows padded to 32 readable rows. */
static void gemm(const Matrix *w, const void *x, int rows, int bf16, Epilogue epilogue, int activation, void *y, int y_stride,
          int thread, int threads) {
    enum { STRIP = 128 }; /* rows whose results fit on the stack */
    float block[STRIP * PANEL_PAIR] __attribute__((aligned(64)));
    const int pairs = w->columns / PANEL_PAIR;
    const int first = (int)((int64_t)pairs * thread / threads), last = (int)((int64_t)pairs * (thread + 1) / threads);
    const int64_t x_stride = (int64_t)w->depth * (bf16 ? 2 : 4), y_bytes = epilogue == GATED && bf16 ? 2 : 4;
    for (int pair = first; pair < last; pair++)
        for (int r = 0; r < rows; r += STRIP) {
            int count = rows - r < STRIP ? rows - r : STRIP;
            const char *strip = (const char *)x + r * x_stride;
            if (bf16 && have_amx())
                pair_amx(w, pair, strip, count, block);
            else
                pair_generic(w, pair, strip, count, bf16, block);
            finish(w, pair, block, count, bf16, epilogue, activation, (char *)y + (int64_t)r * y_stride * y_bytes,
                   y_stride);
        }
}

#endif
