/* Attention of rows over their own paths: scores are products of queries with keys, results products of the scores' shares
 * with values, both by the kernels of gemm.h, for up to TOGETHER queries of a request at once, which then read the cache
 * once: as many as fill the registers twice, or a tile of AMX.
 *
 * A score is a sum of its own. Shares are multiplied with values in the order of positions along the path, in the chunks
 * gemm.h adds in, counted from position 0, whether they lie in the committed prefix or are scattered in a draft tree. A
 * position that a row does not see has a share of zero, which changes no sum. So the result depends on the path alone, not
 * on the company. */
#ifndef OUTRIDER_ATTENTION_H
#define OUTRIDER_ATTENTION_H

#include "cache.h"
#include "gemm.h"

#define MAX_HEAD_DIM 256

/* Queries taken at once. */
INLINE int together(const Shape *s) { return bf16_products(s) ? ROW_TILE : TOGETHER; }

/* From one query's scores to the next one's: an odd number of cache lines. A power of two would have all of them compete for
 * the same few places in the cache. */
INLINE int score_stride(const Shape *s) { return s->capacity + PANEL; }

/* Rows of one slot that see the same committed prefix, and queries first..last-1 of theirs: row by row, the heads that
 * share a key head. */
typedef struct {
    const Pass *pass;
    int row;            /* the first of the run */
    int group;          /* queries of a row */
    int first, last;
} Queries;

/* What one row sees. */
typedef struct {
    const int32_t *path; /* cache indices of positions base.. */
    int base, length;    /* positions seen, the row's own last */
    int oldest;          /* the first that the window lets it see */
    int chain;           /* the path runs through the cache in order */
} Sight;

INLINE Sight sight_of(const Pass *pass, int row, int window) {
    const int start = pass->starts[row], count = pass->starts[row + 1] - start;
    Sight s = {.path = pass->paths + start, .base = pass->bases[row], .length = pass->bases[row] + count, .chain = 1};
    for (int i = 0; i < count; i++) s.chain &= s.path[i] == s.base + i;
    s.oldest = window && s.length > window ? s.length - window : 0;
    return s;
}

INLINE int up_to(int x, int step) { return (x + step - 1) / step * step; }

/* Products with both panels of a pair, on whatever this CPU has; x is bf16 for bf16_products, else fp32, `stride` elements a
 * row. */
INLINE void attention_product(const Shape *s, const char *panel, int64_t pitch, const void *x, int stride, int depth,
                              int rows, int begun, float *block) {
    if (bf16_products(s))
        pair_bf16(panel, pitch, x, stride, depth, rows, begun, block);
    else if (s->bf16)
        pair_of(panel, pitch, x, stride, depth, rows, 1, begun, block);
    else
        pair_of(panel, pitch, x, stride, depth, rows, 0, begun, block);
}

/* Scores of `count` queries, of rows that see `sights[i]`, for positions from..to-1 (whole pairs of panels). `keys`: those of
 * position `from` on; `values`: those that will be multiplied with the shares, or NULL. */
static void score(const Shape *s, const char *keys, const char *values, const void *q, int count, const Sight *sights,
                  int from, int to, float *scores, v16 *highest) {
    const v16 never = splat(-__builtin_inff()), scale = splat(s->attention_scale);
    const i16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int depth = head_depth(s), size = s->bf16 ? 2 : 4;
    float block[TOGETHER * PANEL_PAIR] __attribute__((aligned(64)));
    for (int start = from; start < to; start += PANEL_PAIR, keys += (int64_t)PANEL_PAIR * depth * size) {
        if (values) {
            for (int d = 0; d < s->head_dim; d += PANEL)
                for (int line = 0; line < PANEL_PAIR * PANEL * size; line += 64)
                    __builtin_prefetch(values + (int64_t)d * s->capacity * size + line);
            values += PANEL_PAIR * PANEL * size;
        }
        attention_product(s, keys, (int64_t)depth * PANEL * size, q, depth, depth, count, 0, block);
        for (int i = 0; i < count; i++)
            for (int half = 0; half < PANEL_PAIR; half += PANEL) {
                const int first = start + half;
                v16 found = *(const v16 *)(block + i * PANEL_PAIR + half) * scale;
                if (s->attention_cap != 0.0f) found = capped(found, s->attention_cap);
                if (first < sights[i].oldest || first + PANEL > sights[i].length) {
                    const i16 position = lanes + first;
                    found = choose((position >= sights[i].oldest) & (position < sights[i].length), found, never);
                }
                highest[i] = maximum(found, highest[i]);
                *(v16 *)(scores + (int64_t)i * score_stride(s) + first) = found;
            }
    }
}

/* Scores of positions from..to-1 become shares, of a total that is 1 / the result. In bf16 they fill the first half of the
 * row. */
static float share_out(float *scores, const Sight *sight, int from, int to, v16 highest, int in_bf16) {
    const v16 peak = splat(max_lane(highest)), never = splat(-__builtin_inff());
    const int seen = sight->length / LANES * LANES;
    v16 total = splat(0.0f);
    for (int at = from; at < to; at += LANES) {
        const v16 score = *(const v16 *)(scores + at);
        v16 share = exponential_below_88(score - peak);
        if (at < sight->oldest || at >= seen) share = choose(score > never, share, splat(0.0f));
        total = total + share;
        store(scores, at, share, in_bf16 ? BF16 : FP32);
    }
    return 1.0f / sum(total);
}

/* Values of positions from..to-1 (whole steps) times the shares of `count` queries: to `blocks`, [dimensions/32][TOGETHER][32],
 * or `begun`, added to them. `values`: those of position `from` on, in panels of `depth`. */
static void weigh(const Shape *s, const char *values, int depth, const float *shares, int count, int from, int to, int begun,
                  float *blocks) {
    const int size = s->bf16 ? 2 : 4, in_bf16 = bf16_products(s);
    const int64_t pitch = (int64_t)depth * PANEL * size;
    const char *x = (const char *)shares + (int64_t)from * (in_bf16 ? 2 : 4);
    for (int d = 0; d < s->head_dim; d += PANEL_PAIR)
        attention_product(s, values + d / PANEL * pitch, pitch, x, score_stride(s) * (in_bf16 ? 2 : 1), to - from, count,
                          begun, blocks + d * TOGETHER);
}

/* Keys of positions `from`.. of a row's path in order, packed as in the cache. Behind the path's end lies what was gathered
 * before: any number will do, its share is zero. */
static const char *gathered_keys(const Shape *s, const char *keys, const Sight *sight, int from, char *room) {
    const int depth = head_depth(s), size = s->bf16 ? 2 : 4;
    memcpy(room, keys + (int64_t)from * depth * size, (size_t)up_to(sight->base - from, PANEL) * depth * size);
    const int two = s->bf16 ? 4 : 8; /* bytes of two dimensions, which lie side by side in bf16 */
    for (int position = sight->base; position < sight->length; position++) {
        const char *key = keys + key_at(s, sight->path[position - sight->base], 0) * size;
        char *to = room + packed_at(depth, s->bf16, (position - from) / PANEL, 0, position % PANEL) * size;
        for (int d = 0; d < s->head_dim; d += 2, key += PANEL * two, to += PANEL * two) {
            memcpy(to, key, 4);
            if (!s->bf16) memcpy(to + PANEL * 4, key + PANEL * 4, 4);
        }
    }
    return room;
}

/* Likewise values, and zeros behind the path's end: a share of zero is none only of a number. */
static const char *gathered_values(const Shape *s, const char *values, const Sight *sight, int from, int to, char *room) {
    const int size = s->bf16 ? 2 : 4;
    for (int d = 0; d < s->head_dim; d += PANEL)
        memcpy(room + (int64_t)d * (to - from) * size, values + ((int64_t)d * s->capacity + (int64_t)from * PANEL) * size,
               (size_t)up_to(sight->base - from, 2) * PANEL * size);
    for (int position = sight->base; position < sight->length; position++)
        for (int d = 0; d < s->head_dim; d += PANEL) {
            const char *value = values + value_at(s, sight->path[position - sight->base], d) * size;
            char *at = room + packed_at(to - from, s->bf16, d / PANEL, position - from, 0) * size;
            if (s->bf16) {
                for (int j = 0; j < PANEL; j++) memcpy(at + 4 * j, value + 4 * j, 2);
            } else {
                memcpy(at, value, 4 * PANEL);
            }
        }
    clear_values(s, room, to - from, sight->length - from, to - from);
    return room;
}

/* Queries of one key head. */
static void attend(const Model *m, const Layer *layer, const Queries *queries, int kv_head, int thread) {
    const Shape *s = &m->shape;
    const Pass *pass = queries->pass;
    const int group = queries->group, count = queries->last - queries->first, depth = head_depth(s), dim = s->head_dim;
    const int in_bf16 = bf16_products(s), size = s->bf16 ? 2 : 4, capacity = s->capacity, stride = score_stride(s);
    const int64_t head = head_at(s, pass->slots[queries->row], kv_head);
    const char *keys = (const char *)layer->keys + head, *values = (const char *)layer->values + head;
    float *scores = m->scores + thread * m->scores_size;
    char *room = (char *)(scores + TOGETHER * stride);
    float q[TOGETHER * MAX_HEAD_DIM] __attribute__((aligned(64))), inverse[TOGETHER];
    float blocks[TOGETHER * MAX_HEAD_DIM] __attribute__((aligned(64)));
    Sight sights[TOGETHER];
    v16 highest[TOGETHER];
    int straight = 1, longest = 0, oldest = capacity;
    for (int i = 0; i < count; i++) {
        const int query = queries->first + i, row = queries->row + query / group;
        const float *from = m->qkv + (int64_t)row * layer->qkv.columns + (kv_head * group + query % group) * dim;
        for (int d = 0; d < depth; d += LANES)
            store(q, i * depth + d, d < dim ? *(const v16 *)(from + d) : splat(0.0f), in_bf16 ? BF16 : FP32);
        sights[i] = sight_of(pass, row, layer->window);
        highest[i] = splat(-__builtin_inff());
        straight &= sights[i].chain;
        longest = sights[i].length > longest ? sights[i].length : longest;
        oldest = sights[i].oldest < oldest ? sights[i].oldest : oldest;
    }
    /* Together up to `end`; where a path is scattered, the rest of every row's by itself. */
    const int end = straight ? up_to(longest, PANEL_PAIR) : sights[0].base / SUMMED * SUMMED;
    const int start = (oldest < end ? oldest : end) / SUMMED * SUMMED;
    const int64_t skipped = (int64_t)start * PANEL * size;
    if (in_bf16) begin_bf16(count);
    score(s, keys + (int64_t)start * depth * size, values + skipped, q, count, sights, start, end, scores, highest);
    for (int i = 0, rows; i < count; i += rows) {
        const int left = group - (queries->first + i) % group, to = up_to(sights[i].length, PANEL_PAIR);
        float *own = scores + (int64_t)i * stride;
        rows = straight ? count : count - i < left ? count - i : left; /* queries of one row */
        if (!straight) {
            const int64_t at = (int64_t)end * depth * size;
            if (in_bf16) begin_bf16(rows);
            score(s, sights[i].chain ? keys + at : gathered_keys(s, keys, &sights[i], end, room), 0,
                  (const char *)q + (int64_t)i * depth * (in_bf16 ? 2 : 4), rows, sights + i, end, to, own, highest + i);
        }
        for (int j = 0; j < rows; j++)
            inverse[i + j] = share_out(own + (int64_t)j * stride, &sights[i + j], start, straight ? end : to, highest[i + j], in_bf16);
    }
    if (in_bf16 && !straight) begin_bf16(count);
    if (start < end) weigh(s, values + skipped, capacity, scores, count, start, end, 0, blocks);
    for (int i = 0, rows; !straight && i < count; i += rows) {
        const int left = group - (queries->first + i) % group, to = up_to(sights[i].length, PANEL_PAIR);
        const float *own = scores + (int64_t)i * stride;
        rows = count - i < left ? count - i : left;
        if (in_bf16) begin_bf16(rows);
        if (sights[i].chain)
            weigh(s, values + (int64_t)end * PANEL * size, capacity, own, rows, end, to, start < end, blocks + i * PANEL_PAIR);
        else
            weigh(s, gathered_values(s, values, &sights[i], end, to, room), to - end, own, rows, end, to, start < end,
                  blocks + i * PANEL_PAIR);
    }
    for (int i = 0; i < count; i++) {
        const int query = queries->first + i, row = queries->row + query / group;
        const int64_t at = (int64_t)row * layer->o.depth + (kv_head * group + query % group) * dim;
        for (int d = 0; d < dim; d += LANES) {
            const float *sums = blocks + d / PANEL_PAIR * PANEL_PAIR * TOGETHER + i * PANEL_PAIR + d % PANEL_PAIR;
            store(m->attended, at + d, *(const v16 *)sums * splat(inverse[i]), input_form(s));
        }
    }
}

#endif
