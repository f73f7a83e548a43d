/* The product of gemm.h on x86 with fused multiply-adds. A sum waits for its last addition, so there must be some eight to
 * add to in turn: of few rows, those of two panels. A CPU that takes four instructions a cycle has two left for each two
 * multiply-adds: hence addresses that cost none, and instructions in place of what compilers make of them. */
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

#define FETCHED 4096 /* bytes of a panel to ask for before they are needed, where rows are one tile */
#define INPUTS 4 /* of a row, at once */
#define BUNCH 3  /* rows that one pointer leads to: an address may add once or twice the stride */

/* Adds input `k` of every row, of which x[b] leads to the next ones of row BUNCH * b. */
INLINE void add_input(Part sums[][2 * PARTS], const Part *weights, const float *const *x, int64_t stride, int k, int rows,
                      int parts) {
    UNROLL for (int r = 0; r < rows; r++) {
        Part in = part_of(x[r / BUNCH][r % BUNCH * stride + k]);
        __asm__("" : "+v"(in)); /* loaded here, not before: there is one register for it */
        UNROLL for (int p = 0; p < parts; p++) sums[r][p] = plus_product(sums[r][p], in, weights[p]);
    }
}

/* `rows` (constant, at most KERNEL_ROWS) rows against `panels` (constant) panels, `pitch` bytes apart, added to `block`.
 * Meanwhile it asks for its share of the panels behind these: all tiles together ask for all of them. */
INLINE void kernel(const char *panel, int64_t pitch, const float *from, int64_t stride, int depth, int rows, int panels,
                   int bf16, Turn turn, float *block) {
    enum { LINE = 64 };
    const int parts = panels * PARTS, each = PANEL * (bf16 ? 2 : 4); /* bytes of one input's weights in a panel */
    const int64_t size = (int64_t)depth * each;
    const int64_t step = (LINE + turn.tiles - 1) / turn.tiles; /* bytes to ask for while a line is multiplied */
    const char *next = panel + panels * pitch + turn.tile * step * (size / LINE);
    const float *x[(KERNEL_ROWS + BUNCH - 1) / BUNCH];
    UNROLL for (int b = 0; b * BUNCH < rows; b++) x[b] = from + b * BUNCH * stride;
    for (int left = depth; left > 0; left -= SUMMED) {
        const char *stop = panel + (left < SUMMED ? left : SUMMED) * each;
        if (turn.tiles == 1) next = panel + FETCHED + (left * each > FETCHED ? 0 : panels * pitch - size);
        Part sums[KERNEL_ROWS][2 * PARTS];
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < parts; p++) sums[r][p] = part_of(0.0f);
        do {
            UNROLL for (int k = 0; k < INPUTS; k += 2) {
                Part weights[2 * PARTS];
                const char *at[2 * PARTS];
                UNROLL for (int p = 0; p < panels; p++)
                    UNROLL for (int line = 0; line < 2 * each; line += LINE, next += p + 1 == panels ? step : 0)
                        _mm_prefetch(next + p * pitch, _MM_HINT_T0);
                UNROLL for (int p = 0; p < parts; p++)
                    at[p] = panel + p / PARTS * pitch + k * each + p % PARTS * PART_LANES * 4;
                UNROLL for (int p = 0; p < parts; p++)
                    weights[p] = bf16 ? even_part((const uint16_t *)at[p]) : part_at((const float *)at[p]);
                add_input(sums, weights, x, stride, k, rows, parts);
                UNROLL for (int p = 0; p < parts; p++)
                    weights[p] = bf16 ? odd_part((const uint16_t *)at[p]) : part_at((const float *)at[p] + PANEL);
                add_input(sums, weights, x, stride, k + 1, rows, parts);
            }
            panel += INPUTS * each;
            __asm__("" : "+r"(panel)); /* pointers that move: GCC would count instead, and add to the count for every load */
            UNROLL for (int b = 0; b * BUNCH < rows; b++) {
                x[b] += INPUTS;
                __asm__("" : "+r"(x[b]));
            }
        } while (panel != stop);
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < parts; p++) {
            float *total = block + r * PANEL_PAIR + p * PART_LANES;
            keep_part(total, part_at(total) + sums[r][p]);
        }
    }
}

#endif
