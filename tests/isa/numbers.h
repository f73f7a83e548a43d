/* Random weights of small models. Any numbers are weights, so they are made as they are packed. Nothing is freed. */
#include "decoder.h"

#include <stdlib.h>
#include <string.h>

static uint32_t state;
static float uniform(void) { /* in (-1, 1) */
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)(state >> 8 << 1) * 0x1p-24f - 1.0f;
}

static void *room(size_t bytes) { return calloc(1, (bytes + 63) / 64 * 64 + 64); }

static float *numbers(int count, float size, float middle) {
    float *made = room((size_t)count * 4);
    for (int i = 0; i < count; i++) made[i] = middle + size * uniform();
    return made;
}

static uint16_t *narrow(int count, float size) {
    uint16_t *made = room((size_t)count * 2);
    for (int i = 0; i < count; i++) {
        const float x = size * uniform();
        memcpy(made + i, (const char *)&x + 2, 2);
    }
    return made;
}

static Matrix matrix(int columns, int depth, int bf16, int integers) {
    Matrix w = {.columns = columns, .depth = depth, .inputs = depth};
    if (integers) {
        int8_t *values = room((size_t)columns * depth);
        for (int i = 0; i < columns * depth; i++) values[i] = (int8_t)(uniform() * 127.0f);
        uint16_t *scales = room((size_t)columns * 2); /* one block */
        for (int i = 0; i < columns; i++) scales[i] = 0x3b80; /* 1 / 256 */
        w.data = values, w.scales = scales;
    } else if (bf16) {
        w.data = narrow(columns * depth, 0.4f);
    } else {
        w.data = numbers(columns * depth, 0.4f, 0.0f);
    }
    return w;
}
