/* The tile of gemm_int8.h on any CPU. */
#ifndef OUTRIDER_INT8_PLAIN_H
#define OUTRIDER_INT8_PLAIN_H

#define TILE_ROWS 4
#define TILE_ORDER BY_ROWS

/* Sixteen products, of four columns with four inputs each, added to sixteen sums. */
INLINE i16 add_products(i16 sums, s16 weights, s16 inputs) {
    return sums + __builtin_convertvector(weights * inputs, i16); /* at most 127 * 127: 16 bits do */
}

/* Of `size` weights with as many inputs. */
INLINE int32_t block_product(const int8_t *a, const int8_t *b, int size) {
    int32_t total = 0;
    for (int i = 0; i < size; i++) total += a[i] * b[i];
    return total;
}

/* Sums of sixteen columns over `size` inputs of a row. */
INLINE void block_sums(const int8_t *weights, const int8_t *x, int size, int32_t *columns) {
    i16 sums[4] = {0};
    for (int k = 0; k < size; k += 4) {
        int16_t inputs[PANEL];
        for (int i = 0; i < PANEL; i++) inputs[i] = x[k + i % 4];
        for (int q = 0; q < 4; q++) {
            const b16 *four = (const b16 *)(weights + k * PANEL + q * PANEL);
            sums[q] = add_products(sums[q], __builtin_convertvector(*four, s16), *(const s16 *)inputs);
        }
    }
    for (int c = 0; c < PANEL; c++) {
        const i16 four = sums[c / 4];
        const int at = c % 4 * 4;
        columns[c] = four[at] + four[at + 1] + four[at + 2] + four[at + 3];
    }
}

/* `size` inputs' weights from their codes. */
INLINE void decode(const int8_t *codes, const int8_t *levels, int size, int8_t *weights) {
    for (int i = 0; i < size * PANEL / 2; i++) {
        const uint8_t both = (uint8_t)codes[i];
        int8_t *to = weights + i / 64 * 128 + i % 64;
        to[0] = levels[both & 15];
        to[64] = levels[both >> 4];
    }
}

/* `rows` rows against a panel. */
INLINE void tile_int8(const Panel *w, Lines x, int rows, int coded, Turn turn, float *out) {
    (void)turn;
    int8_t decoded[BLOCK * PANEL] __attribute__((aligned(64)));
    int32_t sums[PANEL];
    for (int r = 0; r < rows; r++) *(v16 *)(out + r * PANEL_PAIR) = splat(0.0f);
    for (int start = 0, block = 0; start < w->depth; start += BLOCK, block++) {
        const int size = block_size(w->depth, start);
        const int8_t *weights = w->weights + start * PANEL;
        if (coded) {
            decode(w->weights + start * PANEL / 2, w->levels, size, decoded);
            weights = decoded;
        }
        for (int r = 0; r < rows; r++)
            for (int part = 0; part < 2; part++) {
                const Lines row = lines_at(x, r);
                const Line line = part ? row.fine : row.coarse;
                const float unit = line.scales[block * x.rows];
                if (part && unit == 0.0f) continue;
                block_sums(weights, line.values + start, size, sums);
                for (int c = 0; c < PANEL; c++) {
                    float *total = out + r * PANEL_PAIR + c;
                    const float scale = coded ? unit : bf16_to_float(w->scales[block * PANEL + c]) * unit;
                    *total = fmaf((float)sums[c], scale, *total);
                }
            }
    }
}

#endif
