/* Where a key or a value lies in the cache of one head of one slot. Both are packed like weights (gemm.h), so that the
 * kernels of matrix products multiply them: keys are panels of sixteen positions, as deep as a head is wide; values panels
 * of sixteen dimensions, as deep as the cache is long. In bf16 two neighbours along the depth lie side by side. */
#ifndef OUTRIDER_CACHE_H
#define OUTRIDER_CACHE_H

#include "decoder.h"

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

/* Bytes before those of head `kv_head` of `slot`. */
static inline int64_t head_at(const Shape *s, int slot, int kv_head) {
    return ((int64_t)slot * s->kv_heads + kv_head) * s->capacity * head_depth(s) * (s->bf16 ? 2 : 4);
}

#endif
