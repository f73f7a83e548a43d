/* The inner loops of attention.h on aarch64: the same sums in the same order, in tiles made for its registers. A query or
 * a weight is multiplied out of a lane of the register it came in. */
#ifndef OUTRIDER_ATTENTION_NEON_H
#define OUTRIDER_ATTENTION_NEON_H

/* Sixteen numbers in the cache's precision. A bf16 is widened by interleaving with zeros: shifts have one unit, this two. */
INLINE void quads_at(const void *base, int64_t at, int quads, int bf16, float32x4_t *to) {
    if (!bf16) {
        UNROLL for (int q = 0; q < quads; q++) to[q] = vld1q_f32((const float *)base + at + 4 * q);
        return;
    }
    UNROLL for (int q = 0; q < quads; q += 2) {
        const uint16x8_t eight = vld1q_u16((const uint16_t *)base + at + 4 * q), zero = vdupq_n_u16(0);
        to[q] = vreinterpretq_f32_u16(vzip1q_u16(zero, eight));
        to[q + 1] = vreinterpretq_f32_u16(vzip2q_u16(zero, eight));
    }
}

/* Queries `q` of `count` (constant) heads times sixteen keys side by side. */
INLINE void dot_block(const float *q, const void *keys, int dim, int count, int bf16, v16 *dots) {
    float32x4_t sums[GROUP][4];
    UNROLL for (int h = 0; h < count; h++) UNROLL for (int i = 0; i < 4; i++) sums[h][i] = vdupq_n_f32(0.0f);
#define DIMENSION(LANE)                                                                        \
    {                                                                                          \
        float32x4_t key[4];                                                                    \
        quads_at(keys, (int64_t)(d + LANE) * LANES, 4, bf16, key);                             \
        UNROLL for (int h = 0; h < count; h++) UNROLL for (int i = 0; i < 4; i++)              \
            sums[h][i] = vfmaq_laneq_f32(sums[h][i], key[i], in[h], LANE);                     \
    }
    for (int d = 0; d < dim; d += 4) {
        float32x4_t in[GROUP];
        UNROLL for (int h = 0; h < count; h++) in[h] = vld1q_f32(q + h * dim + d);
        DIMENSION(0)
        DIMENSION(1)
        DIMENSION(2)
        DIMENSION(3)
    }
#undef DIMENSION
    UNROLL for (int h = 0; h < count; h++) UNROLL for (int i = 0; i < 4; i++) vst1q_f32((float *)(dots + h) + 4 * i, sums[h][i]);
}

/* Adds position `index` of the values, LANE of its four weights. */
#define POSITION(INDEX, LANE)                                                                  \
    {                                                                                          \
        float32x4_t value[16];                                                                 \
        quads_at(values, (INDEX) * dim + part, quads, bf16, value);                            \
        UNROLL for (int h = 0; h < count; h++) UNROLL for (int i = 0; i < quads; i++)          \
            sums[h][i] = vfmaq_laneq_f32(sums[h][i], value[i], weights[h], LANE);              \
    }

/* Values of positions `oldest`.. of a row's path, weighted, of `quads` (constant) times four dimensions from `part` on. */
INLINE void weigh_part(const RowPath *row, int oldest, const void *values, const float *scores, int capacity, int dim,
                       int part, int quads, int count, int bf16, const v16 *inverse, void *out, int64_t out_at,
                       Form out_form) {
    float32x4_t sums[GROUP][16];
    float32x4_t weights[GROUP];
    UNROLL for (int h = 0; h < count; h++) UNROLL for (int i = 0; i < quads; i++) sums[h][i] = vdupq_n_f32(0.0f);
    const int straight = row->chain ? row->length : row->base;
    int64_t position = oldest;
    for (; position + 4 <= straight; position += 4) {
        UNROLL for (int h = 0; h < count; h++) weights[h] = vld1q_f32(scores + (int64_t)h * capacity + position);
        POSITION(position, 0)
        POSITION(position + 1, 1)
        POSITION(position + 2, 2)
        POSITION(position + 3, 3)
    }
    for (; position < row->length; position++) {
        const int64_t index = position < row->base ? position : row->path[position - row->base];
        UNROLL for (int h = 0; h < count; h++) weights[h] = vdupq_n_f32(scores[(int64_t)h * capacity + position]);
        POSITION(index, 0)
    }
    UNROLL for (int h = 0; h < count; h++) UNROLL for (int j = 0; j < quads / 4; j++) {
        float sixteen[LANES];
        UNROLL for (int i = 0; i < 4; i++) vst1q_f32(sixteen + 4 * i, sums[h][4 * j + i]);
        store(out, out_at + h * dim + part + j * LANES, *(const v16 *)sixteen * inverse[h], out_form);
    }
}
#undef POSITION

/* All dimensions, as many at a time as there are registers for. */
INLINE void weigh(const RowPath *row, int oldest, const void *values, const float *scores, int capacity, int dim, int count,
                  int bf16, const v16 *inverse, void *out, int64_t out_at, Form out_form) {
    const int wide = count == 1 ? 16 : count == 2 ? 8 : 4;
    int part = 0;
    for (; part + 4 * wide <= dim; part += 4 * wide)
        weigh_part(row, oldest, values, scores, capacity, dim, part, wide, count, bf16, inverse, out, out_at, out_form);
    for (; part < dim; part += 16)
        weigh_part(row, oldest, values, scores, capacity, dim, part, 4, count, bf16, inverse, out, out_at, out_form);
}

#endif
