/* The tile of stored.h on any CPU. */
#ifndef OUTRIDER_STORED_PLAIN_H
#define OUTRIDER_STORED_PLAIN_H

#define OPENED_ROWS 4

/* `rows` rows of `size` inputs against an opened block whose parts have `part` inputs, added to out[r * PANEL_PAIR]. */
INLINE void tile_opened(const Opened *w, const Inputs *x, int part, int lows, int size, int rows, float *out) {
    for (int r = 0; r < rows; r++) {
        float steps[PANEL] = {0}, least[PANEL] = {0};
        for (int start = 0, p = 0; start < size; start += part, p++) {
            int32_t sums[PANEL];
            const int32_t own = part_sum(x + r, p, part);
            block_sums(w->weights + start * PANEL, x[r].values + start, part, sums);
            for (int c = 0; c < PANEL; c++) {
                steps[c] = fmaf((float)(sums[c] + (lows ? 128 * own : 0)), w->steps[p * PANEL + c], steps[c]);
                if (lows) least[c] = fmaf((float)own, w->lows[p * PANEL + c], least[c]);
            }
        }
        for (int c = 0; c < PANEL; c++) {
            float value = steps[c] * w->unit[c], *total = out + r * PANEL_PAIR + c;
            if (lows) value = fmaf(least[c], w->low_unit[c], value);
            *total = fmaf(value, x[r].scale, *total);
        }
    }
}

#endif
