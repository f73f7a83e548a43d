/* The product of gemm.h on x86 with fused multiply-adds. A sum waits for its last addition, so there must be some eight to
 * add to in turn: of few rows, those of two panels. */
#ifndef OUTRIDER_GEMM_X86_H
#define OUTRIDER_GEMM_X86_H

#include "registers_x86.h"

#if defined(WITH_AVX512) /* 32 registers: at most 24 of sums, 4 of weights */
#define KERNEL_ROWS 12
#define PANELS(ROWS) 2 /* multiplied at once */
#else /* 16 registers: at most 12 of sums, 2 of weights */
#define KERNEL_ROWS 6
#define PANELS(ROWS) ((ROWS) <= 2 ? 2 : 1)
#endif

#define FETCHED 4096 /* bytes of a panel to ask for before they are needed */

/* Adds one input of every row: it lies at x[r * stride], its weights in `weights`. */
INLINE void add_input(Part sums[][2 * PARTS], const Part *weights, const float *x, int stride, int rows, int parts) {
    UNROLL for (int r = 0; r < rows; r++) {
        const Part in = part_of(x[(int64_t)r * stride]);
        UNROLL for (int p = 0; p < parts; p++) sums[r][p] = fused_part(in, weights[p], sums[r][p]);
    }
}

/* `rows` (constant, at most KERNEL_ROWS) rows against `panels` (constant) panels, `pitch` bytes apart, added to `block`. */
INLINE void kernel(const char *panel, int64_t pitch, const float *x, int stride, int depth, int rows, int panels, int bf16,
                   float *block) {
    const int parts = panels * PARTS;
    const int64_t size = (int64_t)depth * PANEL * (bf16 ? 2 : 4);
    for (int start = 0; start < depth; start += SUMMED) {
        const int stop = depth < start + SUMMED ? depth : start + SUMMED;
        Part sums[KERNEL_ROWS][2 * PARTS];
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < parts; p++) sums[r][p] = part_of(0.0f);
        for (int k = start; k < stop; k += 2) {
            Part even[2 * PARTS], odd[2 * PARTS];
            const char *at[2 * PARTS];
            UNROLL for (int p = 0; p < parts; p++)
                at[p] = panel + p / PARTS * pitch + (k * PANEL + p % PARTS * PART_LANES * (bf16 ? 2 : 1)) * (bf16 ? 2 : 4);
            UNROLL for (int p = 0; p < parts; p += PARTS) {
                /* Behind the end of these, the next ones. */
                const int64_t left = size - (int64_t)k * PANEL * (bf16 ? 2 : 4);
                const char *ahead = at[p] + FETCHED + (FETCHED < left ? 0 : panels * pitch - size);
                _mm_prefetch(ahead, _MM_HINT_T0);
                if (!bf16) _mm_prefetch(ahead + 64, _MM_HINT_T0);
            }
            UNROLL for (int p = 0; p < parts; p++)
                even[p] = bf16 ? even_part((const uint16_t *)at[p]) : part_at((const float *)at[p]);
            add_input(sums, even, x + k, stride, rows, parts);
            UNROLL for (int p = 0; p < parts; p++)
                odd[p] = bf16 ? odd_part((const uint16_t *)at[p]) : part_at((const float *)at[p] + PANEL);
            add_input(sums, odd, x + k + 1, stride, rows, parts);
        }
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < parts; p++) {
            float *total = block + r * PANEL_PAIR + p * PART_LANES;
            keep_part(total, part_at(total) + sums[r][p]);
        }
    }
}

#endif
