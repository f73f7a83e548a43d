/* The tile of stored.h on x86: AVX2, AVX-VNNI, and VNNI of AVX-512. */
#ifndef OUTRIDER_STORED_X86_H
#define OUTRIDER_STORED_X86_H

#if defined(WITH_VNNI)
#define OPENED_ROWS 8
#else
#define OPENED_ROWS 4
#endif

/* What a part's sums begin with: what `added` multiplies too much, and what codes without a middle lack. */
INLINE int32_t begun_part(int32_t sum, int lows) {
#if defined(WITH_VNNI) || defined(WITH_AVXVNNI)
    return lows ? 0 : -128 * sum;
#else
    return lows ? 128 * sum : 0;
#endif
}

/* `rows` (constant) rows of `size` inputs against an opened block whose parts have `part` (constant) inputs, added to
 * out[r * PANEL_PAIR]. */
INLINE void tile_opened(const Opened *w, const Inputs *x, int part, int lows, int size, int rows, float *out) {
    UNROLL for (int lane = 0; lane < PANEL; lane += WIDTH) {
        const int8_t *weights = w->weights + 4 * lane;
        Floats steps[OPENED_ROWS], least[OPENED_ROWS];
        UNROLL for (int r = 0; r < rows; r++) steps[r] = least[r] = ZERO_FLOATS;
        for (int start = 0, p = 0; start < size; start += part, p++) {
            Ints sums[OPENED_ROWS];
            UNROLL for (int r = 0; r < rows; r++) sums[r] = ints_of(begun_part(part_sum(x + r, p, part), lows));
            UNROLL for (int k = 0; k < part; k += 4, weights += 4 * PANEL) {
                const Ints four = prepared(ints_at(weights));
                UNROLL for (int r = 0; r < rows; r++) sums[r] = added_at(sums[r], four, x[r].values + start + k);
            }
            const Floats step = floats_at(w->steps + p * PANEL + lane);
            UNROLL for (int r = 0; r < rows; r++) {
                steps[r] = fused_floats(floats_of(sums[r]), step, steps[r]);
                if (lows)
                    least[r] = fused_floats(splatted((float)part_sum(x + r, p, part)), floats_at(w->lows + p * PANEL + lane), least[r]);
            }
        }
        UNROLL for (int r = 0; r < rows; r++) {
            float *total = out + r * PANEL_PAIR + lane;
            Floats value = steps[r] * floats_at(w->unit + lane);
            if (lows) value = fused_floats(least[r], floats_at(w->low_unit + lane), value);
            keep(total, fused_floats(value, splatted(x[r].scale), floats_at(total)));
        }
    }
}

#endif
