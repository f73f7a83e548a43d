/* Logits of a drafting head from half the bytes: all columns from 4-bit weights, the likeliest again from int8 ones.
 *
 * A 4-bit weight is one of sixteen levels times its column's scale; the levels are int8, so the sums are those of
 * gemm_int8.h, whole and exact. What is stored so is not W but W less its mean column, each input stretched to one
 * spread: most of a vocabulary matrix is what all its columns have in common, and a few inputs dwarf the others.
 *   [pair][depth/64][panel][8][16][4]: as in gemm_int8.h, two groups of four inputs to a byte, the first in the low half
 *
 * Columns whose screened logit is at least the SCREENED-th largest of the pairs' largest are computed from int8, to the
 * bit what gemm_int8 gives. So whether a column is depends on the row's screened logits alone: neither on noise drawn
 * later nor on how threads share the work. All logits of few pairs are.
 */
#ifndef OUTRIDER_GEMM_SCREEN_H
#define OUTRIDER_GEMM_SCREEN_H

#include "gemm_int8.h"
#include "pool.h"

#ifdef WITH_VNNI
enum { SCREENED = 32 };

#define CODED_STEP (INT8_STEP * PANEL / 2) /* bytes of a step over depth, one panel */

/* Weights + 128 of sixteen columns: two groups of four inputs. */
VNNI INLINE void decoded(const char *from, __m512i levels, __m512i *low, __m512i *high) {
    const __m512i both = _mm512_loadu_si512(from), half = _mm512_set1_epi8(15);
    ask_ahead(from);
    *low = _mm512_shuffle_epi8(levels, _mm512_and_si512(both, half));
    *high = _mm512_shuffle_epi8(levels, _mm512_and_si512(_mm512_srli_epi16(both, 4), half));
}

/* Up to eight lines. */
VNNI INLINE void lines_coded(const char *codes, __m512i levels, const int8_t *x, int depth, int count, int32_t *block) {
    __m512i first[8], second[8];
    UNROLL for (int r = 0; r < count; r++) first[r] = second[r] = _mm512_setzero_si512();
    for (int k = 0; k < depth; k += INT8_STEP, codes += 2 * CODED_STEP)
        _Pragma("GCC unroll 2") for (int i = 0; i < 8; i++) {
            __m512i a[2], b[2];
            decoded(codes + i * 64, levels, a, a + 1);
            decoded(codes + CODED_STEP + i * 64, levels, b, b + 1);
            UNROLL for (int r = 0; r < count; r++) {
                int32_t four[2];
                memcpy(four, x + (int64_t)r * depth + k + 8 * i, 8);
                first[r] = _mm512_dpbusd_epi32(first[r], a[0], _mm512_set1_epi32(four[0]));
                second[r] = _mm512_dpbusd_epi32(second[r], b[0], _mm512_set1_epi32(four[0]));
                first[r] = _mm512_dpbusd_epi32(first[r], a[1], _mm512_set1_epi32(four[1]));
                second[r] = _mm512_dpbusd_epi32(second[r], b[1], _mm512_set1_epi32(four[1]));
            }
        }
    UNROLL for (int r = 0; r < count; r++) {
        _mm512_storeu_si512(block + r * PANEL_PAIR, first[r]);
        _mm512_storeu_si512(block + r * PANEL_PAIR + PANEL, second[r]);
    }
}

VNNI static void pair_coded(const char *codes, __m512i levels, const int8_t *x, int depth, int lines, int32_t *block) {
#define LINES(COUNT) lines_coded(codes, levels, x, depth, COUNT, block)
    BY_COUNT(lines)
#undef LINES
}

/* A pair as gemm_int8.h has it. */
VNNI static void decode_pair(const char *codes, __m512i levels, int depth, char *panels) {
    for (int i = 0; i < depth / INT8_STEP * 16; i++) {
        __m512i low, high;
        decoded(codes + i * 64, levels, &low, &high);
        _mm512_storeu_si512(panels + i * 128, low);
        _mm512_storeu_si512(panels + i * 128 + 64, high);
    }
}

/* One column in int8, as settle and finish make it of the same sum. */
VNNI static float rescored(const Matrix *w, const Narrowed *row, const int8_t *x, int column) {
    const char *weights = (const char *)w->data + (int64_t)column * w->depth;
    __m512i sums = _mm512_setzero_si512();
    for (int k = 0; k < w->depth; k += INT8_STEP)
        sums = _mm512_dpbusd_epi32(sums, _mm512_loadu_si512(weights + k), _mm512_loadu_si512(x + k));
    return (float)(_mm512_reduce_add_epi32(sums) - row->excess) * row->scale * w->scales[column];
}

/* The float at a place in the order of floats, by which integers count them: -NaN, -inf, .., inf, NaN. */
INLINE float float_at(int32_t place) {
    const int32_t bits = place >= 0 ? place : place ^ 0x7fffffff;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* The SCREENED-th largest, by halving; below all of them where there are no more. */
static float threshold(const float *values, int count) {
    const int32_t infinity = 0x7f800000;
    int64_t low = -1 - (int64_t)infinity, high = infinity; /* it is neither below nor above */
    while (low < high && count > SCREENED) {
        const int64_t middle = low + (high - low + 1) / 2;
        const float least = float_at((int32_t)middle);
        int found = 0;
        for (int i = 0; i < count; i++) found += values[i] >= least;
        if (found >= SCREENED)
            low = middle;
        else
            high = middle - 1;
    }
    return float_at((int32_t)low);
}

/* x · mean, and x stretched to `out`. */
INLINE float shared_part(const Matrix *w, const float *x, float *out) {
    const Screen *s = w->screen;
    v16 total = splat(0.0f);
    for (int j = 0; j < w->inputs; j += LANES) {
        const v16 part = *(const v16 *)(x + j);
        total = total + part * *(const v16 *)(s->mean + j);
        *(v16 *)(out + j) = part * *(const v16 *)(s->stretch + j);
    }
    return sum(total);
}

/* The share of `thread` of `threads`; `rows` at most ROWS. All is done when it returns. */
static void gemm_screened(const Model *m, const Matrix *w, const float *x, int rows, float *y, int y_stride, int thread,
                          int threads) {
    enum { ROWS = 128, FEW = 8 };
    int32_t block[ROWS * PANEL_PAIR] __attribute__((aligned(64)));
    float results[ROWS * PANEL_PAIR] __attribute__((aligned(64)));
    float offsets[ROWS];
    Narrowed stretched[ROWS], plain[ROWS];
    const Screen *s = w->screen;
    const int depth = w->depth, pairs = w->columns / PANEL_PAIR;
    const int first = (int)((int64_t)pairs * thread / threads), last = (int)((int64_t)pairs * (thread + 1) / threads);
    int8_t *lines = m->scratch + thread * m->scratch_size, *plain_lines = lines + (int64_t)ROWS * depth;
    char *panels = (char *)plain_lines + (int64_t)ROWS * depth; /* also fp32 x, before */
    const __m512i levels = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)s->levels));
    for (int r = 0; r < rows; r++) {
        const float *row = x + (int64_t)r * depth;
        offsets[r] = shared_part(w, row, (float *)panels);
        stretched[r] = narrow_row(w, (const float *)panels, lines + (int64_t)r * depth);
        plain[r] = narrow_row(w, row, plain_lines + (int64_t)r * depth);
    }
#ifdef WITH_AMX
    const int tiles = m->shape.kernels == KERNELS_AMX && rows > FEW;
    if (tiles) amx_configure(rows);
#endif
    for (int pair = first; pair < last; pair++) {
        const char *codes = (const char *)s->codes + (int64_t)pair * depth * PANEL;
        if (rows <= FEW) {
            pair_coded(codes, levels, lines, depth, rows, block);
        } else {
            decode_pair(codes, levels, depth, panels);
#ifdef WITH_AMX
            if (tiles)
                pair_tiles(panels, lines, depth, rows, block);
            else
#endif
                pair_vnni(panels, lines, depth, rows, block);
        }
        settle(w, stretched, rows, block, results);
        const float *scales = s->scales + pair * PANEL_PAIR;
        const int real = s->columns - pair * PANEL_PAIR;
        const __mmask32 known = real < PANEL_PAIR ? ((__mmask32)1 << real) - 1 : ~(__mmask32)0;
        for (int r = 0; r < rows; r++) {
            const v16 *sums = (const v16 *)(results + r * PANEL_PAIR);
            const v16 low = sums[0] * *(const v16 *)scales + splat(offsets[r]);
            const v16 high = sums[1] * *(const v16 *)(scales + PANEL) + splat(offsets[r]);
            store(y, (int64_t)r * y_stride + pair * PANEL_PAIR, low, 0);
            store(y, (int64_t)r * y_stride + pair * PANEL_PAIR + PANEL, high, 0);
            const __m512 none = _mm512_set1_ps(-__builtin_inff());
            const __m512 most = _mm512_max_ps(_mm512_mask_mov_ps(none, (__mmask16)known, (__m512)low),
                                              _mm512_mask_mov_ps(none, (__mmask16)(known >> PANEL), (__m512)high));
            s->largest[(int64_t)r * pairs + pair] = _mm512_reduce_max_ps(most);
        }
    }
    pool_barrier();
    /* Likely tokens lie close together: the threads take turns, or one would have nearly all of them. */
    for (int r = 0; r < rows; r++) {
        const float *largest = s->largest + (int64_t)r * pairs, least = threshold(largest, pairs);
        float *logits = y + (int64_t)r * y_stride;
        for (int pair = thread; pair < pairs; pair += threads) {
            if (largest[pair] < least) continue;
            const int start = pair * PANEL_PAIR, stop = start + PANEL_PAIR < s->columns ? start + PANEL_PAIR : s->columns;
            for (int column = start; column < stop; column++)
                if (logits[column] >= least)
                    logits[column] = rescored(w, plain + r, plain_lines + (int64_t)r * depth, column);
        }
    }
    pool_barrier();
}
#else
static void gemm_screened(const Model *m, const Matrix *w, const float *x, int rows, float *y, int y_stride, int thread,
                          int threads) {
    (void)m, (void)w, (void)x, (void)rows, (void)y, (void)y_stride, (void)thread, (void)threads;
}
#endif

#endif
