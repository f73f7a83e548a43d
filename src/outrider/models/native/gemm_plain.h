/* The product of gemm.h on any CPU. */
#ifndef OUTRIDER_GEMM_PLAIN_H
#define OUTRIDER_GEMM_PLAIN_H

#define KERNEL_ROWS 8
#define PANELS(ROWS) 1 /* multiplied at once */

/* `rows` (constant, at most KERNEL_ROWS) rows against a panel, added to `block`. */
INLINE void kernel(const char *panel, int64_t pitch, const float *x, int stride, int depth, int rows, int panels, int bf16,
                   Turn turn, float *block) {
    (void)panels, (void)pitch, (void)turn;
    for (int start = 0; start < depth; start += SUMMED) {
        const int stop = depth < start + SUMMED ? depth : start + SUMMED;
        v16 sums[KERNEL_ROWS];
        UNROLL for (int r = 0; r < rows; r++) sums[r] = splat(0.0f);
        for (int k = start; k < stop; k += 2) {
            const u16v both = ((const u16v *)panel)[k / 2];
            const v16 even = bf16 ? (v16)(both << 16) : ((const v16 *)panel)[k];
            const v16 odd = bf16 ? (v16)(both & 0xffff0000u) : ((const v16 *)panel)[k + 1];
            UNROLL for (int r = 0; r < rows; r++) {
                const float *in = x + (int64_t)r * stride + k;
                sums[r] = sums[r] + splat(in[0]) * even;
                sums[r] = sums[r] + splat(in[1]) * odd;
            }
        }
        UNROLL for (int r = 0; r < rows; r++) {
            v16 *total = (v16 *)(block + r * PANEL_PAIR);
            *total = *total + sums[r];
        }
    }
}

#endif
