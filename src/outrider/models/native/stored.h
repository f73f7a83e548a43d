/* y = x · W^T with weights as a GGUF file quantised them (blocks.h) and inputs rounded to int8 as gemm_int8.h does it, BLOCK
 * of them to a scale, outliers in two. One definition for every CPU, and the same bits on all of them. For each block of
 * inputs, in order, outliers' rest last:
 *
 *   sums   of a part's products, code - middle (or code, where there are lows) times input, and of its inputs alone: integers,
 *          which is exact
 *   S      the parts' steps times their sums of products, one after the other, multiplication fused with addition
 *   L      the parts' lows times their sums of inputs, likewise (exact where lows are integers)
 *   v      unit * S, and fused with it low_unit * L
 *   total  fused, v * the inputs' scale
 *
 * Units of small blocks are 1. No step depends on other rows or on how columns are shared out, and no instruction that can
 * saturate is used.
 *
 * A strip has panels of 16 columns (stored_layout.h), of which SPAN inputs lie together: their codes, then the steps of their
 * parts. Codes are kept as code - middle in the upper bits of a byte, what is left of the byte taken by others:
 *   8 bits [16 fours][16][4], as gemm_int8.h has them
 *   6 bits [4][3]: of four fours, three; the last one's bits, two by two, are below those of the others
 *   5 bits [2][5]: of eight fours a..h, five; below those, the upper 3 of f, 2 of f 1 of h, 3 of g, 2 of g 1 of h, 3 of h
 *   4 bits [8]: the first part's fours below the second part's
 * So a code may be multiplied as 2^(8 - bits) times what it is, which the units make up for: that changes no bit. F32, F16
 * and BF16 matrices, [depth][16], are multiplied as fp32 numbers.
 */
#ifndef OUTRIDER_STORED_H
#define OUTRIDER_STORED_H

#include "gemm_int8.h"
#include "stored_layout.h"

#define PARTS_16 (BLOCK / 16)

/* A block of a row's inputs, and what they add up to. */
typedef struct {
    int8_t values[BLOCK];
#ifdef WITH_DOTPROD
    int32_t begins[PARTS_16 / 2][4]; /* sums of 32, as stored_dotprod.h begins with them */
#endif
    int8_t low[4], high[4];  /* sums of 32: 128 * high + low */
    int32_t of_16[PARTS_16]; /* sums */
    float scale;             /* 0: nothing but zeros */
} __attribute__((aligned(16))) Inputs;

/* Of its `part`-th part, of so many inputs. */
INLINE int32_t part_sum(const Inputs *x, int part, int inputs) {
    return inputs == 32 ? x->of_16[2 * part] + x->of_16[2 * part + 1] : x->of_16[part];
}

/* Whether these rows are nothing but zeros: so are outliers' rests mostly. */
INLINE int all_zeros(const Inputs *x, int rows) {
    int found = 1;
    for (int r = 0; r < rows; r++) found &= x[r].scale == 0.0f;
    return found;
}

/* Rows of inputs, [blocks][rows]. */
typedef struct {
    Inputs *coarse, *fine;
    int rows;
} Rounded;

INLINE v16 halves_at(const uint8_t *from) { /* fp16 */
    const u16v bits = __builtin_convertvector(*(const h16 *)from, u16v), sign = (bits & 0x8000) << 16;
    const v16 size = (v16)((bits & 0x7fff) << 13) * splat(0x1p112f); /* the exponent starts elsewhere */
    const i16 endless = (i16)((bits & 0x7c00) == 0x7c00);
    return (v16)(sign | (u16v)choose(endless, (v16)((bits & 0x3ff) << 13 | 0x7f800000), size));
}

#if defined(WITH_DOTPROD)
#include "stored_dotprod.h"
#elif defined(WITH_AVX2)
#include "stored_x86.h"
#else
#include "stored_opened.h"
#endif

INLINE int32_t sum_16(const int8_t *x) {
#if defined(__aarch64__)
    return vaddlvq_s8(vld1q_s8(x));
#elif defined(__x86_64__) /* of bytes without a sign */
    const __m128i shifted = _mm_xor_si128(_mm_loadu_si128((const __m128i *)x), _mm_set1_epi8(-128));
    const __m128i halves = _mm_sad_epu8(shifted, _mm_setzero_si128());
    return _mm_cvtsi128_si32(halves) + _mm_extract_epi16(halves, 4) - 128 * 16;
#else
    int32_t total = 0;
    for (int i = 0; i < 16; i++) total += x[i];
    return total;
#endif
}

/* A row, to x[block * rows]. */
static void sum_row(Line row, int depth, int rows, Inputs *x) {
    for (int start = 0; start < depth; start += BLOCK, row.values += BLOCK, row.scales += rows, x += rows) {
        memset(x, 0, sizeof *x);
        if (*row.scales == 0.0f) continue;
        const int size = block_size(depth, start);
        x->scale = *row.scales;
        memcpy(x->values, row.values, (size_t)size);
        for (int k = 0; k < size; k += 16) x->of_16[k / 16] = sum_16(row.values + k);
        for (int part = 0; part < PARTS_16 / 2; part++) {
            const int32_t total = part_sum(x, part, 32);
            x->high[part] = (int8_t)((total + 64) >> 7);
            x->low[part] = (int8_t)(total - 128 * x->high[part]);
#ifdef WITH_DOTPROD
            vst1q_s32(x->begins[part], vdupq_n_s32(COUNTED + 128 * total));
#endif
        }
    }
}

/* Rows of x in blocks, behind those that `narrowed` makes: as there, by every thread for itself or shared out. */
static Rounded rounded(const Model *m, const Matrix *w, const float *x, int rows, int thread, int threads) {
    const Lines lines = narrowed(m, w, x, rows, thread, threads);
    const int few = by_itself(m, rows, threads);
    Inputs *behind = (Inputs *)(m->scratch + (few ? thread * m->scratch_size : 0) + rows * LINE_BYTES(w->depth));
    const Rounded found = {behind, behind + (int64_t)rows * BLOCKS(w->depth), rows};
    for (int r = few ? 0 : thread; r < rows; r += few ? 1 : threads) {
        const Lines row = lines_at(lines, r);
        sum_row(row.coarse, w->depth, rows, found.coarse + r);
        sum_row(row.fine, w->depth, rows, found.fine + r);
    }
    if (!few) pool_barrier();
    return found;
}

/* The strip that a panel is of, and which of its panels; NULL: the panel is padding. */
INLINE const Strip *strip_of(const Matrix *w, int panel, int *which) {
    for (int i = 0; i < w->strip_count; i++) {
        const Strip *strip = w->strips + i;
        const int at = panel - strip->first;
        if (at >= 0 && at % strip->step == 0 && at / strip->step < strip->panels) {
            *which = at / strip->step;
            return strip;
        }
    }
    return 0;
}

#define WIDENED 128 /* inputs at once: a multiple of SUMMED */

/* A pair of panels of numbers; of others, zeros. */
static void pair_numbers(const Strip *const *strips, const int *which, const float *x, int depth, int rows, float *block) {
    float tile[2][WIDENED * PANEL] __attribute__((aligned(64)));
    for (int k = 0; k < depth; k += WIDENED) {
        const int count = depth - k < WIDENED ? depth - k : WIDENED;
        for (int half = 0; half < 2; half++) {
            const Strip *strip = strips[half];
            if (!strip || kind_of(strip->kind).bits) {
                memset(tile[half], 0, sizeof tile[half]);
                continue;
            }
            const Kind kind = kind_of(strip->kind);
            const uint8_t *from = (const uint8_t *)strip->data + ((int64_t)which[half] * depth + k) * PANEL * kind.bytes;
            for (int i = 0; i < count; i++, from += PANEL * kind.bytes) {
                v16 *to = (v16 *)(tile[half] + i * PANEL);
                if (strip->kind == STORED_F32)
                    *to = *(const v16 *)from;
                else
                    *to = strip->kind == STORED_F16 ? halves_at(from) : widen(*(const h16 *)from);
            }
        }
        pair_of((const char *)tile, sizeof tile[0], x + k, depth, count, rows, 0, k > 0, block);
    }
}

/* As gemm, with fp32 rows of inputs. */
static void gemm_stored(const Model *m, const Matrix *w, const void *x, int rows, Epilogue epilogue, void *y, int y_stride,
                        int thread, int threads) {
    float block[MOST_ROWS * PANEL_PAIR] __attribute__((aligned(64)));
    const Rounded blocks = rounded(m, w, x, rows, thread, threads);
    Share share = pool_share(w->columns / PANEL_PAIR, thread, threads);
    for (int pair; (pair = pool_next(&share)) >= 0;) {
        int which[2] = {0, 0};
        const Strip *strips[2];
        for (int half = 0; half < 2; half++) strips[half] = strip_of(w, 2 * pair + half, which + half);
        if (!strips[0] || !strips[1] || !kind_of(strips[0]->kind).bits || !kind_of(strips[1]->kind).bits)
            pair_numbers(strips, which, x, w->depth, rows, block);
        for (int half = 0; half < 2; half++) {
            const Strip *strip = strips[half];
            if (!strip || !kind_of(strip->kind).bits) continue;
            const uint8_t *panel = (const uint8_t *)strip->data + which[half] * panel_bytes(strip->kind, w->depth);
            panel_stored(panel, strip->kind, &blocks, w->depth, block + half * PANEL);
        }
        finish(w, pair, block, rows, FP32, epilogue, m->shape.activation, y, y_stride);
    }
}

#endif
