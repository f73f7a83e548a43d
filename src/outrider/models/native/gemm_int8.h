/* y = x · W^T in integers, for a drafting head: its int8 weights stay as they are, and a row of x becomes int8 on the way
 * in. A draft need not be exact; and weights that need no widening come as fast as the caches give them.
 *
 * W is packed in pairs of panels as in gemm.h, four neighbouring inputs of a column together:
 *   [pair][depth/64][panel][16][16][4], where [16][16][4] is a tile of AMX
 * in bytes weight + 128, because the instructions of AVX-512 take one factor without sign. So a sum is too large by 128
 * times the row's inputs, which is put right at the end. Integer sums are exact: whichever kernel runs, the result is the
 * same to the bit, and a row's depends on nothing but the row.
 */
#ifndef OUTRIDER_GEMM_INT8_H
#define OUTRIDER_GEMM_INT8_H

#include "gemm.h"

#ifdef WITH_VNNI
#define VNNI __attribute__((target("avx512vnni")))
#define INT8_STEP 64 /* inputs of a tile */

/* A row of x is `coarse` plus, where asked for, `fine`: what rounding to int8 left, in 254ths. */
typedef struct {
    float scale;    /* of the coarse part: x = scale * (coarse + fine / 254) */
    int32_t excess; /* 128 times the sum of the coarse part, and */
    int32_t fine_excess;
} Narrowed;

enum { FINE = 254 };

/* How many int8 rows a row of x becomes. */
INLINE int lines_of(const Matrix *w) { return w->fine ? 2 : 1; }

INLINE i16 nearest(v16 x) { /* |x| < 2^22 */
    const v16 magic = splat(12582912.0f);
    return (i16)(x + magic) - (i16)magic;
}

INLINE int32_t sum_of(i16 x) {
    int32_t total = 0;
    for (int i = 0; i < LANES; i++) total += x[i];
    return total;
}

/* `lines` gets one or two int8 rows of w->depth, zero behind the inputs. */
static Narrowed narrow_row(const Matrix *w, const float *x, int8_t *lines) {
    const int inputs = w->inputs, depth = w->depth;
    const i16 positive = (i16)splat(0.0f) + 0x7fffffff;
    v16 most = splat(0.0f);
    for (int j = 0; j < inputs; j += LANES) most = maximum(most, (v16)(*(const i16 *)(x + j) & positive));
    const float peak = max_lane(most);
    Narrowed row = {.scale = peak / 127.0f};
    const v16 inverse = splat(peak > 1e-30f ? 127.0f / peak : 0.0f);
    i16 total = (i16)splat(0.0f), fine_total = total;
    for (int j = 0; j < inputs; j += LANES) {
        const v16 scaled = *(const v16 *)(x + j) * inverse;
        const i16 coarse = nearest(scaled);
        total += coarse;
        *(b16 *)(lines + j) = __builtin_convertvector(coarse, b16);
        if (w->fine) {
            const i16 fine = nearest((scaled - __builtin_convertvector(coarse, v16)) * splat(FINE));
            fine_total += fine;
            *(b16 *)(lines + depth + j) = __builtin_convertvector(fine, b16);
        }
    }
    memset(lines + inputs, 0, (size_t)(depth - inputs));
    if (w->fine) memset(lines + depth + inputs, 0, (size_t)(depth - inputs));
    row.excess = 128 * sum_of(total);
    row.fine_excess = 128 * sum_of(fine_total);
    return row;
}

/* Ask for weights well before they are needed. A head's are in no near cache after the target's pass, and its matrices
 * are too small for the CPU's own look-ahead, which starts anew in every 4 KB: without this, the first pass of a draft
 * reads half as fast. */
INLINE void ask_ahead(const char *at) {
    enum { EARLIER = 8192 };
    _mm_prefetch(at + EARLIER, _MM_HINT_T1);
}

/* Up to eight lines. */
VNNI INLINE void lines_vnni(const char *panels, const int8_t *x, int depth, int count, int32_t *block) {
    __m512i first[8], second[8];
    UNROLL for (int r = 0; r < count; r++) first[r] = second[r] = _mm512_setzero_si512();
    for (int k = 0; k < depth; k += INT8_STEP, panels += INT8_STEP * PANEL_PAIR)
        _Pragma("GCC unroll 4") for (int i = 0; i < 16; i++) {
            ask_ahead(panels + i * 64);
            ask_ahead(panels + 1024 + i * 64);
            const __m512i a = _mm512_loadu_si512(panels + i * 64), b = _mm512_loadu_si512(panels + 1024 + i * 64);
            UNROLL for (int r = 0; r < count; r++) {
                int32_t four;
                memcpy(&four, x + (int64_t)r * depth + k + 4 * i, 4);
                first[r] = _mm512_dpbusd_epi32(first[r], a, _mm512_set1_epi32(four));
                second[r] = _mm512_dpbusd_epi32(second[r], b, _mm512_set1_epi32(four));
            }
        }
    UNROLL for (int r = 0; r < count; r++) {
        _mm512_storeu_si512(block + r * PANEL_PAIR, first[r]);
        _mm512_storeu_si512(block + r * PANEL_PAIR + PANEL, second[r]);
    }
}

/* The number of lines must be a constant where they are multiplied. */
#define BY_COUNT(COUNT)         \
    switch (COUNT) {            \
        case 1: LINES(1); break; \
        case 2: LINES(2); break; \
        case 3: LINES(3); break; \
        case 4: LINES(4); break; \
        case 5: LINES(5); break; \
        case 6: LINES(6); break; \
        case 7: LINES(7); break; \
        case 8: LINES(8); break; \
    }

VNNI static void pair_vnni(const char *panels, const int8_t *x, int depth, int lines, int32_t *block) {
    int r = 0;
#define LINES(COUNT) lines_vnni(panels, x + (int64_t)r * depth, depth, COUNT, block + r * PANEL_PAIR)
    for (; lines - r > 8; r += 8) LINES(8);
    BY_COUNT(lines - r)
#undef LINES
}

#ifdef WITH_AMX
/* Many lines: 32 at a time, tiles as in gemm_amx.h. x has lines padded to 32 readable ones. */
__attribute__((target("amx-tile,amx-int8"))) static void pair_tiles(const char *panels, const int8_t *x, int depth,
                                                                    int lines, int32_t *block) {
    for (int r = 0; r < lines; r += 2 * ROW_TILE) {
        const int two = lines - r > ROW_TILE;
        const int8_t *top = x + (int64_t)r * depth, *low = top + (int64_t)ROW_TILE * depth;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int k = 0; k < depth; k += INT8_STEP) {
            const char *b = panels + (int64_t)k * PANEL_PAIR;
            _tile_loadd(4, top + k, depth);
            _tile_loadd(6, b, 64);
            _tile_loadd(7, b + 1024, 64);
            _tile_dpbsud(0, 4, 6);
            _tile_dpbsud(1, 4, 7);
            if (!two) continue;
            _tile_loadd(5, low + k, depth);
            _tile_dpbsud(2, 5, 6);
            _tile_dpbsud(3, 5, 7);
        }
        int32_t *out = block + r * PANEL_PAIR;
        _tile_stored(0, out, PANEL_PAIR * 4);
        _tile_stored(1, out + PANEL, PANEL_PAIR * 4);
        if (!two) continue;
        _tile_stored(2, out + ROW_TILE * PANEL_PAIR, PANEL_PAIR * 4);
        _tile_stored(3, out + ROW_TILE * PANEL_PAIR + PANEL, PANEL_PAIR * 4);
    }
}
#endif

/* Sums of lines to fp32 rows. */
static void settle(const Matrix *w, const Narrowed *narrowed, int rows, const int32_t *block, float *results) {
    const int lines = lines_of(w);
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < PANEL_PAIR; half += PANEL) {
            const i16 *sums = (const i16 *)(block + r * lines * PANEL_PAIR + half);
            v16 value = __builtin_convertvector(sums[0] - narrowed[r].excess, v16);
            if (w->fine) {
                const i16 *fine = (const i16 *)(block + (r * lines + 1) * PANEL_PAIR + half);
                value = value + __builtin_convertvector(fine[0] - narrowed[r].fine_excess, v16) * splat(1.0f / FINE);
            }
            *(v16 *)(results + r * PANEL_PAIR + half) = value * splat(narrowed[r].scale);
        }
}

/* The share of `thread` of `threads`. x: fp32 rows of w->depth. Every thread narrows all of x for itself: that is little
 * work, and less than waiting for another. */
static void gemm_int8(const Model *m, const Matrix *w, const void *x, int rows, Epilogue epilogue, void *y, int y_stride,
                      int thread, int threads) {
    enum { STRIP = 128, FEW = 8 }; /* lines whose results fit on the stack; lines AVX-512 is faster for */
    int32_t block[STRIP * PANEL_PAIR] __attribute__((aligned(64)));
    float results[STRIP * PANEL_PAIR] __attribute__((aligned(64)));
    Narrowed narrowed[STRIP];
    int8_t *lines = m->scratch + thread * m->scratch_size;
    const int pairs = w->columns / PANEL_PAIR, depth = w->depth, each = lines_of(w), most = STRIP / each;
    const int first = (int)((int64_t)pairs * thread / threads), last = (int)((int64_t)pairs * (thread + 1) / threads);
    for (int r = 0; r < rows; r += most) {
        const int count = rows - r < most ? rows - r : most, taken = count * each;
        for (int i = 0; i < count; i++)
            narrowed[i] = narrow_row(w, (const float *)x + (int64_t)(r + i) * depth, lines + (int64_t)i * each * depth);
#ifdef WITH_AMX
        const int tiles = m->shape.kernels == KERNELS_AMX && taken > FEW;
        if (tiles) amx_configure(taken);
#endif
        for (int pair = first; pair < last; pair++) {
            const char *panels = pair_of(w, pair, STORED_INT8);
#ifdef WITH_AMX
            if (tiles)
                pair_tiles(panels, lines, depth, taken, block);
            else
#endif
                pair_vnni(panels, lines, depth, taken, block);
            settle(w, narrowed, count, block, results);
            finish(w, pair, results, count, 0, epilogue, m->shape.activation,
                   (float *)y + (int64_t)r * y_stride, y_stride);
        }
    }
}
#else
static void gemm_int8(const Model *m, const Matrix *w, const void *x, int rows, Epilogue epilogue, void *y, int y_stride,
                      int thread, int threads) {
    (void)m, (void)w, (void)x, (void)rows, (void)epilogue, (void)y, (void)y_stride, (void)thread, (void)threads;
}
#endif

#endif
