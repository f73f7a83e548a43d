/* Where a key or a value lies in the cache of one head of one slot. Both are packed like weights (gemm.h), so that the
 * kernels of matrix products multiply them: keys are panels of sixteen positions, as deep as a head is wide; values panels
 * of sixteen dimensions, as deep as the cache is long. In bf16 two neighbours along the depth lie side by side. */
#ifndef OUTRIDER_CACHE_H
#define OUTRIDER_CACHE_H

#include "decoder.h"

#include <string.h>

/* Dimensions of a head with the padding, which stays zero. */
static inline int head_depth(const Shape *s) { return (s->head_dim + PANEL_PAIR - 1) / PANEL_PAIR * PANEL_PAIR; }

/* Of a panel of such depth: column `lane`, `k` along the depth. In elements, as everything here. */
static inline int64_t packed_at(int depth, int bf16, int panel, int k, int lane) {
    const int64_t at = (int64_t)panel * depth * PANEL;
    return bf16 ? at + k / 2 * 2 * PANEL + 2 * lane + k % 2 : at + (int64_t)k * PANEL + lane;
}

static inline int64_t key_at(const Shape *s, int position, int d) {
    return packed_at(head_depth(s), s->bf16, position / PANEL, d, position % PANEL);
}

static inline int64_t value_at(const Shape *s, int position, int d) {
    return packed_at(s->capacity, s->bf16, d / PANEL, position, d % PANEL);
}

/* Zeros for positions from..to-1 of the values of one head, in panels of `depth`: what nobody has written may be no number,
 * and no share, not even zero, makes nothing of that. `to` is even. */
static inline void clear_values(const Shape *s, char *values, int depth, int from, int to) {
    const int size = s->bf16 ? 2 : 4;
    for (int d = 0; d < s->head_dim; d += PANEL) {
        char *panel = values + packed_at(depth, s->bf16, d / PANEL, 0, 0) * size;
        int first = from;
        if (s->bf16 && first % 2) { /* beside one that is written */
            for (int lane = 0; lane < PANEL; lane++) memset(panel + packed_at(depth, 1, 0, first, lane) * 2, 0, 2);
            first++;
        }
        memset(panel + (int64_t)first * PANEL * size, 0, (size_t)(to - first) * PANEL * (size_t)size);
    }
}

/* Bytes before those of head `kv_head` of `slot`. */
static inline int64_t head_at(const Shape *s, int slot, int kv_head) {
    return ((int64_t)slot * s->kv_heads + kv_head) * s->capacity * head_depth(s) * (s->bf16 ? 2 : 4);
}

#endif
