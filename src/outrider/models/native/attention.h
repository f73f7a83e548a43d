/* Attention of one row over its own path. Keys are reduced in blocks of sixteen absolute positions along that path, in
 * order, whether they lie in the committed prefix or are scattered in a draft tree; so the result depends on the path alone. */
#ifndef OUTRIDER_ATTENTION_H
#define OUTRIDER_ATTENTION_H

#include "vector.h"

#define MAX_HEAD_DIM 256

typedef struct {
    int base;            /* positions 0..base-1 lie at those cache indices */
    int length;          /* positions seen, the row's own last */
    const int32_t *path; /* cache indices of positions base..length-1 */
    int chain;           /* path[i] == base + i throughout */
    float cap;           /* of its scores; 0: none */
} RowPath;

#define AHEAD 4096 /* bytes of keys and values to ask for before they are needed */
#define GROUP 4 /* query heads handled together: what fits in registers */

/* Sixteen keys side by side per dimension, [head_dim][16], for positions 16*block.. of row's path: straight from the cache
 * where the path runs through it in order, else gathered into `tile`. Both give the same numbers in the same lanes. */
INLINE const void *key_block(const RowPath *row, const void *keys, int block, int dim, int bf16, void *tile) {
    const int start = block * LANES;
    if (row->chain || start + LANES <= row->base)
        return (const char *)keys + (int64_t)block * dim * LANES * (bf16 ? 2 : 4);
    for (int lane = 0; lane < LANES; lane++) {
        int position = start + lane;
        if (position >= row->length) position = row->length - 1; /* masked later; any finite key will do */
        int index = position < row->base ? position : row->path[position - row->base];
        int64_t from = (int64_t)(index / LANES) * dim * LANES + index % LANES;
        for (int d = 0; d < dim; d++) {
            if (bf16)
                ((uint16_t *)tile)[d * LANES + lane] = ((const uint16_t *)keys)[from + (int64_t)d * LANES];
            else
                ((float *)tile)[d * LANES + lane] = ((const float *)keys)[from + (int64_t)d * LANES];
        }
    }
    return tile;
}

/* What is weighed after the scores is asked for while they are made: sixteen positions of `values`. */
INLINE void ask_for_values(const void *values, int block, int dim, int bf16) {
    const char *from = (const char *)values + (int64_t)block * LANES * dim * (bf16 ? 2 : 4);
    for (int at = 0; at < LANES * dim * (bf16 ? 2 : 4); at += 64) __builtin_prefetch(from + at);
}

#if defined(__aarch64__)
#include "attention_neon.h"
#define SIDE_BY_SIDE 1 /* blocks of keys: their sums fill the registers */
#else
#define SIDE_BY_SIDE 2 /* one alone waits for its own sums */

/* Queries `q` of `count` heads times sixteen keys side by side. */
INLINE void dot_block(const float *q, const void *keys, int dim, int count, int bf16, v16 *dots) {
    for (int h = 0; h < count; h++) dots[h] = splat(0.0f);
    for (int d = 0; d < dim; d++) {
        v16 key = load(keys, (int64_t)d * LANES, bf16);
        for (int h = 0; h < count; h++) dots[h] = dots[h] + splat(q[h * dim + d]) * key;
    }
}

/* Values of positions `oldest`.. of a row's path, weighted. */
INLINE void weigh(const RowPath *row, int oldest, const void *values, const float *scores, int capacity, int dim, int count,
                  int bf16, const v16 *inverse, void *out, int64_t out_at, Form out_form) {
    for (int part = 0; part < dim; part += 64) { /* 64 dimensions of GROUP heads: sixteen registers */
        const int vectors = (dim - part < 64 ? dim - part : 64) / LANES;
        v16 sums[GROUP][4];
        for (int h = 0; h < count; h++)
            for (int j = 0; j < 4; j++) sums[h][j] = splat(0.0f);
        for (int position = oldest; position < row->length; position++) {
            int64_t index = position < row->base ? position : row->path[position - row->base];
            for (int j = 0; j < vectors; j += 2)
                __builtin_prefetch((const char *)values + (index * dim + part + j * LANES) * (bf16 ? 2 : 4) + AHEAD);
            for (int j = 0; j < vectors; j++) {
                v16 value = load(values, index * dim + part + j * LANES, bf16);
                for (int h = 0; h < count; h++)
                    sums[h][j] = sums[h][j] + splat(scores[(int64_t)h * capacity + position]) * value;
            }
        }
        for (int h = 0; h < count; h++)
            for (int j = 0; j < vectors; j++)
                store(out, out_at + h * dim + part + j * LANES, sums[h][j] * inverse[h], out_form);
    }
}
#endif

/* Scores of `blocks` (constant) blocks of sixteen positions; each is a sum of its own, whatever is computed beside it. */
INLINE void score_blocks(const RowPath *row, const float *q, const void *keys, int block, int blocks, int dim, int count,
                         int oldest, float scale, int bf16, float *tiles, float *scores, int capacity, v16 *highest) {
    const v16 never = splat(-__builtin_inff());
    const i16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const void *k[2];
    v16 dot[2][GROUP];
    UNROLL for (int b = 0; b < blocks; b++)
        k[b] = key_block(row, keys, block + b, dim, bf16, tiles + b * MAX_HEAD_DIM * LANES);
    if (blocks == 1) {
        dot_block(q, k[0], dim, count, bf16, dot[0]);
    } else {
        const char *following = (const char *)k[0] + AHEAD;
        for (int h = 0; h < count; h++) dot[0][h] = dot[1][h] = splat(0.0f);
        for (int d = 0; d < dim; d++) {
            __builtin_prefetch(following + (int64_t)d * 2 * LANES * (bf16 ? 2 : 4));
            UNROLL for (int b = 0; b < 2; b++) {
                v16 key = load(k[b], (int64_t)d * LANES, bf16);
                for (int h = 0; h < count; h++) dot[b][h] = dot[b][h] + splat(q[h * dim + d]) * key;
            }
        }
    }
    UNROLL for (int b = 0; b < blocks; b++) {
        const int start = (block + b) * LANES, whole = start >= oldest && start + LANES <= row->length;
        i16 position = lanes + start;
        for (int h = 0; h < count; h++) {
            v16 score = dot[b][h] * splat(scale);
            if (row->cap != 0.0f) score = capped(score, row->cap);
            if (!whole) score = choose((position >= oldest) & (position < row->length), score, never);
            highest[h] = maximum(score, highest[h]);
            *(v16 *)(scores + (int64_t)h * capacity + (block + b) * LANES) = score;
        }
    }
}

INLINE void attend_group(const RowPath *row, const float *q, const void *keys, const void *values, int dim, int count,
                         int window, float scale, int bf16, float *scores, int capacity, void *out, int64_t out_at,
                         Form out_form) {
    float tile[2 * MAX_HEAD_DIM * LANES] __attribute__((aligned(64)));
    const int oldest = window && row->length > window ? row->length - window : 0;
    const int first = oldest / LANES, last = (row->length - 1) / LANES;
    const v16 never = splat(-__builtin_inff());
    v16 highest[GROUP], inverse[GROUP];
    for (int h = 0; h < count; h++) highest[h] = never;
    int block = first;
    if (SIDE_BY_SIDE == 2)
        for (; block < last; block += 2)
            score_blocks(row, q, keys, block, 2, dim, count, oldest, scale, bf16, tile, scores, capacity, highest);
    for (; block <= last; block++) {
        if (SIDE_BY_SIDE == 1) ask_for_values(values, block, dim, bf16);
        score_blocks(row, q, keys, block, 1, dim, count, oldest, scale, bf16, tile, scores, capacity, highest);
    }
    for (int h = 0; h < count; h++) {
        const v16 peak = splat(max_lane(highest[h]));
        v16 total = splat(0.0f);
        for (int block = first; block <= last; block++) {
            v16 *score = (v16 *)(scores + (int64_t)h * capacity + block * LANES);
            v16 weight = exponential(*score - peak);
            if (block == first || block == last) weight = choose(*score > never, weight, splat(0.0f));
            total = total + weight;
            *score = weight;
        }
        inverse[h] = splat(1.0f / sum(total));
    }
    weigh(row, oldest, values, scores, capacity, dim, count, bf16, inverse, out, out_at, out_form);
}

/* The group size and precision must be constants in the inner loops to stay in registers. */
#define CASE(COUNT, BF16)                                                                                          \
    attend_group(row, q + h * dim, keys, values, dim, COUNT, window, scale, BF16, scores, capacity, out, at, out_form)

/* `heads` query heads sharing one key head; keys and values of that head and slot; scores: [4, capacity] scratch. */
static void attend(const RowPath *row, const float *q, const void *keys, const void *values, int heads, int dim,
                   int window, float scale, int bf16, float *scores, int capacity, void *out, int64_t out_at, Form out_form) {
    for (int h = 0; h < heads; h += GROUP) {
        const int64_t at = out_at + h * dim;
        const int count = heads - h < GROUP ? heads - h : GROUP;
        switch (count * 2 + bf16) {
            case 2: CASE(1, 0); break;
            case 3: CASE(1, 1); break;
            case 4: CASE(2, 0); break;
            case 5: CASE(2, 1); break;
            case 6: CASE(3, 0); break;
            case 7: CASE(3, 1); break;
            case 8: CASE(4, 0); break;
            default: CASE(4, 1); break;
        }
    }
}

#endif
