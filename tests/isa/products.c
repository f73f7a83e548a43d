/* Matrix products on every instruction set this CPU has, without Python: run natively and under qemu by run.py.
 *
 * int8 products are held against the definition in gemm_int8.h, written out number by number; bf16 and fp32 ones against
 * the same rows one by one, and against sums in double precision; those of matrices stored as in GGUF files against the
 * definition in stored.h. Prints one line for each instruction set: its number and hashes of its int8 results and of those
 * with stored weights, which must be the same everywhere.
 */
#include "blocks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int outrider_has(int kernels);
void outrider_product(const Model *m, const Product *product);
int passes_agree(int kernels, int bf16, int integers); /* passes.c */
int drafts_agree(int kernels, int integers);           /* drafts.c */
void outrider_pack(const uint8_t *rows, int64_t pitch, int kind, int first, int last, int inputs, int depth, uint8_t *panels);

enum { COLUMNS = 64, DEPTH = 704, BLOCK = 128, BLOCKS = (DEPTH + BLOCK - 1) / BLOCK, MOST = 100 };

static uint32_t state = 1;
static float uniform(void) { /* in (-1, 1), the same on every CPU */
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)(state >> 8 << 1) * 0x1p-24f - 1.0f;
}

static int8_t weights[COLUMNS][DEPTH];
static uint16_t scales[COLUMNS][BLOCKS];
static int8_t packed[COLUMNS * DEPTH];
static uint16_t packed_scales[COLUMNS * BLOCKS];
static uint16_t bf16_weights[COLUMNS * DEPTH], bf16_inputs[MOST * DEPTH];
static float fp32_weights[COLUMNS * DEPTH], inputs[MOST * DEPTH], rounded_inputs[MOST * DEPTH];
static float together[MOST * COLUMNS], alone[COLUMNS], expected[MOST * COLUMNS];

static float wide(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static void fill(void) {
    for (int c = 0; c < COLUMNS; c++) {
        for (int k = 0; k < DEPTH; k++) weights[c][k] = (int8_t)(uniform() * 127.0f);
        for (int b = 0; b < BLOCKS; b++) scales[c][b] = (uint16_t)(0x3c00 + (int)(uniform() * 200.0f));
    }
    weights[3][5] = 127, weights[3][6] = -127;
    for (int c = 0; c < COLUMNS; c++)
        for (int k = 0; k < DEPTH; k++) {
            packed[c / 16 * 16 * DEPTH + k / 4 * 64 + c % 16 * 4 + k % 4] = weights[c][k];
            packed_scales[(c / 16 * BLOCKS + k / BLOCK) * 16 + c % 16] = scales[c][k / BLOCK];
            fp32_weights[c / 16 * 16 * DEPTH + k * 16 + c % 16] = weights[c][k] * 0.01f;
            bf16_weights[c / 16 * 16 * DEPTH + k / 2 * 32 + c % 16 * 2 + k % 2] = (uint16_t)(0x3c00 + weights[c][k]);
        }
    for (int i = 0; i < MOST * DEPTH; i++) inputs[i] = uniform(), bf16_inputs[i] = (uint16_t)(0x3f00 + i * 7 % 300);
    for (int i = 0; i < MOST * DEPTH; i++) rounded_inputs[i] = wide(bf16_inputs[i]);
    for (int r = 0; r < MOST; r += 3) inputs[r * DEPTH + 5] *= 300.0f; /* outliers */
    for (int r = 1; r < MOST; r += 4) inputs[r * DEPTH + 700] *= 900.0f;
    memset(inputs + 7 * DEPTH, 0, DEPTH * 4);
}

/* A row as gemm_int8.h defines it. */
static void define(const float *x, float *y) {
    float lanes[16] = {0}, magnitude;
    for (int k = 0; k < DEPTH; k++) lanes[k % 16] += fabsf(x[k]);
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    magnitude = lanes[0] * (20.0f / DEPTH);
    for (int c = 0; c < COLUMNS; c++) y[c] = 0.0f;
    for (int b = 0; b < BLOCKS; b++) {
        const int first = b * BLOCK, last = first + BLOCK < DEPTH ? first + BLOCK : DEPTH;
        float peak = 0.0f;
        for (int k = first; k < last; k++) peak = fmaxf(peak, fabsf(x[k]));
        volatile float scale = peak > 1e-30f ? peak / 127.0f : 0.0f, inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
        for (int part = 0; part < 2; part++) {
            if (part && !(peak > magnitude)) continue;
            const float unit = part ? scale / 254.0f : scale;
            for (int c = 0; c < COLUMNS; c++) {
                int32_t sum = 0;
                for (int k = first; k < last; k++) {
                    volatile float scaled = x[k] * inverse;
                    volatile float coarse = nearbyintf(scaled), rest = (scaled - coarse) * 254.0f;
                    sum += weights[c][k] * (int32_t)(part ? nearbyintf(rest) : coarse);
                }
                volatile float both = wide(scales[c][b]) * unit;
                y[c] = fmaf((float)sum, both, y[c]);
            }
        }
    }
}

static Model model;

/* Where inputs are bf16 as weights are. */
static int bf16_products(int kernels) { return kernels == KERNELS_AMX || kernels == KERNELS_BF16; }

static void multiply(const Matrix *w, const void *x, int rows, float *y) {
    static float padded[128 * DEPTH];
    const size_t size = (size_t)DEPTH * (model.shape.bf16 && bf16_products(model.shape.kernels) ? 2 : 4);
    memset(padded, 0, sizeof padded);
    memcpy(padded, x, rows * size);
    Product product = {w, padded, y, rows};
    outrider_product(&model, &product);
}

static int rows_agree(const Matrix *w, const char *x, size_t size, const char *what, int kernels) {
    static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 33, 40, 64, MOST};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int threads = 1; threads <= 3; threads += 2) {
            model.shape.threads = threads;
            multiply(w, x, counts[i], together);
            for (int r = 0; r < counts[i]; r++) {
                model.shape.threads = 1;
                multiply(w, x + r * size, 1, alone);
                if (memcmp(alone, together + r * COLUMNS, sizeof alone)) {
                    printf("kernels %d: row %d of %d in %s depends on its company\n", kernels, r, counts[i], what);
                    return 0;
                }
            }
        }
    return 1;
}

/* Whether products are those of the numbers: x [MOST][DEPTH], and packed weights, two inputs of a column side by side in
 * bf16. */
static int near(const Matrix *w, const void *given, const float *x, int kernels) {
    const int bf16 = model.shape.bf16;
    model.shape.threads = 2;
    multiply(w, given, MOST, together);
    for (int r = 0; r < MOST; r++)
        for (int c = 0; c < COLUMNS; c++) {
            double sum = 0.0, size = 0.0;
            for (int k = 0; k < DEPTH; k++) {
                const int panel = c / 16 * 16 * DEPTH;
                const double weight = bf16 ? wide(((const uint16_t *)w->data)[panel + k / 2 * 32 + c % 16 * 2 + k % 2])
                                           : ((const float *)w->data)[panel + k * 16 + c % 16];
                sum += x[r * DEPTH + k] * weight;
                size += fabs(x[r * DEPTH + k] * weight);
            }
            if (!(fabs(together[r * COLUMNS + c] - sum) <= 2e-5 * size)) {
                printf("kernels %d: result %d of row %d, bf16 %d, is %.9g, not %.9g\n", kernels, c, r, bf16,
                       together[r * COLUMNS + c], sum);
                return 0;
            }
        }
    return 1;
}

static uint64_t hashed(uint64_t hash, const void *data, size_t size) {
    for (size_t i = 0; i < size; i++) hash = (hash ^ ((const uint8_t *)data)[i]) * 1099511628211u;
    return hash;
}

enum { STORED_DEPTH = 512, STORED_ROWS = COLUMNS - 10 }; /* the last columns are padding */
static uint8_t file[STORED_ROWS * STORED_DEPTH * 4], panels[COLUMNS * STORED_DEPTH * 4];
static float stored_y[MOST * COLUMNS], stored_expected[MOST * COLUMNS];

/* Rows as a file has them, of any codes and steps. */
static void fill_file(int kind) {
    const Kind k = kind_of(kind);
    for (size_t i = 0; i < sizeof file; i++) file[i] = (uint8_t)(int)(uniform() * 128.0f);
    for (uint8_t *block = file; block < file + STORED_ROWS * STORED_DEPTH / k.inputs * k.bytes; block += k.bytes) {
        /* Upper bytes of fp16 numbers: no infinite ones, but some below the normal. */
        if (k.bits) block[kind == STORED_Q6_K ? 209 : 1] &= 0xaf;
        if (k.lows) block[3] &= 0xaf;
        if (kind == STORED_F32) memcpy(block, &(float){uniform()}, 4);
        if (kind == STORED_F16 || kind == STORED_BF16) block[1] &= 0xbf;
    }
}

/* A row as stored.h defines it, of quantised weights; of numbers, about that. */
static void define_stored(int kind, const float *x, float *y) {
    const Kind k = kind_of(kind);
    enum { LAST = STORED_DEPTH / BLOCK };
    float lanes[16] = {0};
    for (int i = 0; i < STORED_DEPTH; i++) lanes[i % 16] += fabsf(x[i]);
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    const float usual = lanes[0] * (20.0f / STORED_DEPTH);
    for (int c = 0; c < STORED_ROWS; c++) {
        const uint8_t *row = file + (size_t)c * (STORED_DEPTH / k.inputs) * k.bytes;
        y[c] = 0.0f;
        if (!k.bits) {
            static float numbers[STORED_DEPTH];
            row_of(row, kind, STORED_DEPTH, numbers);
            double total = 0.0;
            for (int i = 0; i < STORED_DEPTH; i++) total += (double)numbers[i] * x[i];
            y[c] = (float)total;
            continue;
        }
        uint8_t codes[STORED_DEPTH];
        for (int i = 0; i < STORED_DEPTH; i += k.inputs) block_codes(row + i / k.inputs * k.bytes, kind, codes + i);
        for (int b = 0; b < LAST; b++) {
            float peak = 0.0f;
            for (int i = b * BLOCK; i < (b + 1) * BLOCK; i++) peak = fmaxf(peak, fabsf(x[i]));
            volatile float scale = peak > 1e-30f ? peak / 127.0f : 0.0f, inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
            for (int fine = 0; fine < 2; fine++) {
                if (fine && !(peak > usual)) continue;
                const uint8_t *block = row + b * BLOCK / k.inputs * k.bytes;
                volatile float products = 0.0f, least = 0.0f, value;
                for (int part = 0; part < BLOCK / k.part; part++) {
                    int32_t sum = 0, own = 0;
                    for (int i = b * BLOCK + part * k.part; i < b * BLOCK + (part + 1) * k.part; i++) {
                        volatile float scaled = x[i] * inverse;
                        volatile float coarse = nearbyintf(scaled), rest = (scaled - coarse) * 254.0f;
                        const int32_t in = (int32_t)(fine ? nearbyintf(rest) : coarse);
                        sum += (codes[i] - (k.lows ? 0 : 1 << (k.bits - 1))) * in;
                        own += in;
                    }
                    float step, low = 0.0f;
                    if (k.inputs == 32) {
                        step = half_at(block + part * k.bytes), low = half_at(block + part * k.bytes + 2);
                    } else if (k.lows) {
                        uint8_t bytes[2];
                        block_part(block, b % 2 * 4 + part, bytes, bytes + 1);
                        step = bytes[0], low = bytes[1];
                    } else {
                        step = (int8_t)block[192 + b % 2 * 8 + part];
                    }
                    products = fmaf((float)sum, step, products);
                    if (k.lows) least = fmaf((float)own, low, least);
                }
                const int large = k.inputs == 256;
                value = products * (large ? half_at(block + (k.lows ? 0 : 208)) : 1.0f);
                if (k.lows) value = fmaf(least, large ? -half_at(block + 2) : 1.0f, value);
                y[c] = fmaf(value, fine ? scale / 254.0f : scale, y[c]);
            }
        }
    }
}

/* Whether a stored matrix multiplies as it is defined; adds its results to the hash. */
static int stored_right(int kind, int kernels, uint64_t *hash) {
    static const int counts[] = {1, 2, 3, 4, 5, 6, 9, MOST};
    const Kind k = kind_of(kind);
    const Strip strip = {panels, kind, COLUMNS / 16, 0, 1};
    const Matrix w = {.columns = COLUMNS, .depth = STORED_DEPTH, .inputs = STORED_DEPTH, .strips = &strip, .strip_count = 1};
    fill_file(kind);
    memset(panels, 0, sizeof panels);
    outrider_pack(file, STORED_DEPTH / k.inputs * k.bytes, kind, 0, STORED_ROWS, STORED_DEPTH, STORED_DEPTH, panels);
    for (int r = 0; r < MOST; r++) define_stored(kind, inputs + r * STORED_DEPTH, stored_expected + r * COLUMNS);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        Product product = {&w, inputs, stored_y, counts[i]};
        model.shape.threads = 1 + i % 3;
        outrider_product(&model, &product);
        for (int at = 0; at < counts[i] * COLUMNS; at++) {
            const float found = stored_y[at], wanted = stored_expected[at];
            if (at % COLUMNS >= STORED_ROWS) continue;
            if (k.bits ? found != wanted : fabsf(found - wanted) > 1e-3f * (1.0f + fabsf(wanted))) {
                printf("kernels %d: kind %d of %d rows, result %d is %.9g, defined as %.9g\n", kernels, kind, counts[i], at,
                       found, wanted);
                return 0;
            }
        }
    }
    if (k.bits) *hash = hashed(*hash, stored_y, sizeof stored_y);
    return 1;
}

int main(void) {
    int right = 1;
    fill();
    for (int r = 0; r < MOST; r++) define(inputs + r * DEPTH, expected + r * COLUMNS);
    model.scratch_size = 128 * 2 * (DEPTH + (16 + 256) * BLOCKS) + 64;
    model.scratch = calloc(4, (size_t)model.scratch_size);
    const Matrix int8 = {.data = packed, .scales = packed_scales, .columns = COLUMNS, .depth = DEPTH, .inputs = DEPTH};
    const Matrix fp32 = {.data = fp32_weights, .columns = COLUMNS, .depth = DEPTH, .inputs = DEPTH};
    const Matrix bf16 = {.data = bf16_weights, .columns = COLUMNS, .depth = DEPTH, .inputs = DEPTH};
    for (int kernels = 0; kernels < KERNELS_COUNT; kernels++) {
        if (!outrider_has(kernels)) continue;
        model.shape.kernels = kernels;
        model.shape.bf16 = 0, model.shape.integers = 1;
        right &= rows_agree(&int8, (const char *)inputs, DEPTH * 4, "int8", kernels);
        model.shape.threads = 2;
        multiply(&int8, inputs, MOST, together);
        for (int i = 0; i < MOST * COLUMNS; i++)
            if (together[i] != expected[i]) {
                printf("kernels %d: int8 result %d is %.9g, defined as %.9g\n", kernels, i, together[i], expected[i]);
                right = 0;
                break;
            }
        const uint64_t hash = hashed(14695981039346656037u, together, sizeof together);
        model.shape.integers = 0;
        right &= rows_agree(&fp32, (const char *)inputs, DEPTH * 4, "fp32", kernels);
        right &= near(&fp32, inputs, inputs, kernels);
        model.shape.bf16 = 1;
        right &= bf16_products(kernels) ? rows_agree(&bf16, (const char *)bf16_inputs, DEPTH * 2, "bf16", kernels)
                                        : rows_agree(&bf16, (const char *)rounded_inputs, DEPTH * 4, "bf16", kernels);
        right &= near(&bf16, bf16_products(kernels) ? (const void *)bf16_inputs : rounded_inputs, rounded_inputs, kernels);
        model.shape.integers = 1;
        const uint32_t before = state; /* the same weights for every instruction set */
        uint64_t stored_hash = 14695981039346656037u;
        for (int kind = STORED_F32; kind <= STORED_Q6_K; kind++) right &= stored_right(kind, kernels, &stored_hash);
        state = before;
        for (int kind = 0; kind < 3; kind++) right &= passes_agree(kernels, kind > 0, kind > 1);
        for (int kind = 0; kind < 2; kind++) right &= drafts_agree(kernels, kind);
        printf("%d %016llx %016llx\n", kernels, (unsigned long long)hash, (unsigned long long)stored_hash);
    }
    return !right;
}
