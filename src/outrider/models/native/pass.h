/* One pass of the whole decoder over ragged rows, compiled once per instruction set (isa_*.c). */
#ifndef OUTRIDER_PASS_H
#define OUTRIDER_PASS_H

#include "decoder.h"

#include <math.h>

#include "attention.h"
#include "gemm.h"
#include "pool.h"
#include "rank.h"
#include "vector.h"

#define SHARE(n) for (int i = thread; i < (n); i += threads)

/* x / rms(x) * weight, fp32 in, `out` in the model's precision. size is a multiple of 16. */
static void rms_norm(const float *x, const float *weight, int size, float eps, void *out, int64_t at, int bf16) {
    v16 squares = splat(0.0f);
    for (int j = 0; j < size; j += LANES) {
        v16 part = *(const v16 *)(x + j);
        squares = squares + part * part;
    }
    v16 scale = splat(1.0f / sqrtf(sum(squares) / (float)size + eps));
    for (int j = 0; j < size; j += LANES)
        store(out, at + j, *(const v16 *)(x + j) * scale * *(const v16 *)(weight + j), bf16);
}

/* residual += update, normalised first where the family asks for it. */
static void add(float *residual, float *update, const float *out_norm, int size, float eps) {
    if (out_norm) rms_norm(update, out_norm, size, eps, update, 0, 0);
    for (int j = 0; j < size; j += LANES)
        *(v16 *)(residual + j) = *(const v16 *)(residual + j) + *(const v16 *)(update + j);
}

/* One input of the packed head: see gemm.h for the layouts. */
INLINE float head_element(const Matrix *head, int column, int k, int bf16) {
    const int64_t pair = column / PANEL_PAIR;
    if (!bf16) return ((const float *)head->data)[(pair * head->depth + k) * PANEL_PAIR + column % PANEL_PAIR];
    const int panel = column % PANEL_PAIR / PANEL, lane = column % PANEL;
    const int64_t line = ((pair * (head->depth / 32) + k / 32) * 2 + panel) * 16 + k % 32 / 2;
    if (head->scales) return ((const int8_t *)head->data)[(line * 2 + k % 2) * 16 + lane] * head->scales[column];
    return bf16_to_float(((const uint16_t *)head->data)[(line * 16 + lane) * 2 + k % 2]);
}

static void embed(const Model *m, int token, float *out) {
    const int hidden = m->shape.hidden;
    const int64_t at = (int64_t)token * hidden;
    const v16 scale = splat(m->shape.embed_scale);
    if (!m->embedding) {
        for (int j = 0; j < hidden; j++) out[j] = head_element(&m->head, token, j, m->shape.bf16) * m->shape.embed_scale;
    } else if (m->embedding_scales) {
        const v16 unit = splat(m->embedding_scales[token]);
        for (int j = 0; j < hidden; j += LANES)
            *(v16 *)(out + j) = from_int8(*(const b16 *)((const int8_t *)m->embedding + at + j)) * unit * scale;
    } else {
        for (int j = 0; j < hidden; j += LANES) *(v16 *)(out + j) = load(m->embedding, at + j, m->shape.bf16) * scale;
    }
}

/* Turn one head in place: pairs (j, j + dim/2). */
static void rotate(float *x, const float *cosines, const float *sines, int dim) {
    const int half = dim / 2;
    int j = 0;
    for (; j + LANES <= half; j += LANES) {
        v16 first = *(const v16 *)(x + j), second = *(const v16 *)(x + j + half);
        v16 cosine = *(const v16 *)(cosines + j), sine = *(const v16 *)(sines + j);
        *(v16 *)(x + j) = first * cosine - second * sine;
        *(v16 *)(x + j + half) = second * cosine + first * sine;
    }
    for (; j < half; j++) {
        float first = x[j], second = x[j + half];
        x[j] = first * cosines[j] - second * sines[j];
        x[j + half] = second * cosines[j] + first * sines[j];
    }
}

/* Normalise and rotate the row's queries and keys, and write keys and values to the cache. */
static void prepare_heads(const Model *m, const Layer *layer, const Pass *pass, int row) {
    const Shape *s = &m->shape;
    const int dim = s->head_dim, end = pass->starts[row + 1];
    const int index = pass->paths[end - 1], slot = pass->slots[row];
    const int position = pass->bases[row] + end - pass->starts[row] - 1;
    const float *cosines = layer->cosines + (int64_t)position * (dim / 2);
    const float *sines = layer->sines + (int64_t)position * (dim / 2);
    float *qkv = m->qkv + (int64_t)row * layer->qkv.columns;
    for (int h = 0; h < s->heads + s->kv_heads; h++) {
        float *x = qkv + h * dim;
        const float *norm = h < s->heads ? layer->q_norm : layer->k_norm;
        if (norm) rms_norm(x, norm, dim, s->norm_eps, x, 0, 0);
        rotate(x, cosines, sines, dim);
    }
    for (int h = 0; h < s->kv_heads; h++) {
        const float *key = qkv + (s->heads + h) * dim, *value = key + s->kv_heads * dim;
        const int64_t head = ((int64_t)slot * s->kv_heads + h) * s->capacity * dim;
        const int64_t at = head + (int64_t)(index / LANES) * dim * LANES + index % LANES;
        for (int d = 0; d < dim; d += LANES) {
            uint16_t narrow_key[LANES];
            if (s->bf16) *(h16 *)narrow_key = narrow(*(const v16 *)(key + d));
            for (int j = 0; j < LANES; j++) {
                if (s->bf16)
                    ((uint16_t *)layer->keys)[at + (int64_t)(d + j) * LANES] = narrow_key[j];
                else
                    ((float *)layer->keys)[at + (int64_t)(d + j) * LANES] = key[d + j];
            }
            store(layer->values, head + (int64_t)index * dim + d, *(const v16 *)(value + d), s->bf16);
        }
    }
}

static void attend_row(const Model *m, const Layer *layer, const Pass *pass, int row, int kv_head, int thread) {
    const Shape *s = &m->shape;
    const int dim = s->head_dim, group = s->heads / s->kv_heads, start = pass->starts[row];
    RowPath path = {.base = pass->bases[row], .path = pass->paths + start, .chain = 1};
    path.length = path.base + pass->starts[row + 1] - start;
    for (int i = 0; i < path.length - path.base; i++) path.chain &= path.path[i] == path.base + i;
    const int64_t head = ((int64_t)pass->slots[row] * s->kv_heads + kv_head) * s->capacity * dim * (s->bf16 ? 2 : 4);
    attend(&path, m->qkv + (int64_t)row * layer->qkv.columns + kv_head * group * dim, (const char *)layer->keys + head,
           (const char *)layer->values + head, group, dim, layer->window, s->attention_scale, s->bf16,
           m->scores + (int64_t)thread * 4 * s->capacity, s->capacity, m->attended,
           (int64_t)row * layer->o.depth + kv_head * group * dim);
}

/* What goes into a layer's qkv; for the first of a drafting head the token's embedding comes in here. */
static void attention_input(const Model *m, const Layer *layer, const Pass *pass, int row) {
    const Shape *s = &m->shape;
    float *residual = m->residual + (int64_t)row * s->hidden;
    const int64_t at = (int64_t)row * layer->qkv.depth;
    const Fusion *fusion = layer == m->layers ? m->fusion : 0;
    if (!fusion) {
        rms_norm(residual, layer->attention_norm, s->hidden, s->norm_eps, m->normed, at, s->bf16);
        return;
    }
    float *embedding = m->update + (int64_t)row * fusion->fc.columns; /* scratch; the row's fused state is read */
    embed(fusion->target, pass->tokens[row], embedding);
    rms_norm(embedding, layer->attention_norm, s->hidden, s->norm_eps, m->normed, at, s->bf16);
    rms_norm(residual, fusion->state_norm, s->hidden, s->norm_eps, m->normed, at + s->hidden, s->bf16);
    if (fusion->normed_residual)
        rms_norm(residual, fusion->state_norm, s->hidden, s->norm_eps, residual, 0, 0);
}

static void run_layer(const Model *m, const Layer *layer, const Pass *pass, int thread, int threads) {
    const Shape *s = &m->shape;
    const int rows = pass->rows, hidden = s->hidden, bf16 = s->bf16;
    SHARE(rows) attention_input(m, layer, pass, i);
    pool_barrier();
    gemm(m, &layer->qkv, m->normed, rows, PLAIN, m->qkv, layer->qkv.columns, thread, threads);
    pool_barrier();
    SHARE(rows) prepare_heads(m, layer, pass, i);
    pool_barrier();
    SHARE(rows * s->kv_heads) attend_row(m, layer, pass, i / s->kv_heads, i % s->kv_heads, thread);
    pool_barrier();
    gemm(m, &layer->o, m->attended, rows, PLAIN, m->update, layer->o.columns, thread, threads);
    pool_barrier();
    SHARE(rows) {
        float *residual = m->residual + (int64_t)i * hidden;
        add(residual, m->update + (int64_t)i * layer->o.columns, layer->attention_out_norm, hidden, s->norm_eps);
        rms_norm(residual, layer->mlp_norm, hidden, s->norm_eps, m->normed, (int64_t)i * layer->gate_up.depth, bf16);
    }
    pool_barrier();
    gemm(m, &layer->gate_up, m->normed, rows, GATED, m->gated, layer->down.depth, thread, threads);
    pool_barrier();
    gemm(m, &layer->down, m->gated, rows, PLAIN, m->update, layer->down.columns, thread, threads);
    pool_barrier();
    SHARE(rows)
        add(m->residual + (int64_t)i * hidden, m->update + (int64_t)i * layer->down.columns, layer->mlp_out_norm,
            hidden, s->norm_eps);
}

/* The residual stream a head starts with. */
static void begin_fused(const Model *m, const Pass *pass, int thread, int threads) {
    const Shape *s = &m->shape;
    const Matrix *fc = &m->fusion->fc;
    if (pass->features) {
        const int width = m->fusion->width;
        SHARE(pass->rows)
            for (int j = 0; j < width; j += LANES)
                store(m->fusion->features, (int64_t)i * fc->depth + j,
                      *(const v16 *)(pass->features + (int64_t)i * width + j), s->bf16);
        pool_barrier();
        gemm(m, fc, m->fusion->features, pass->rows, PLAIN, m->update, fc->columns, thread, threads);
        pool_barrier();
    }
    const float *states = pass->features ? m->update : pass->states;
    const int stride = pass->features ? fc->columns : s->hidden;
    SHARE(pass->rows)
        memcpy(m->residual + (int64_t)i * s->hidden, states + (int64_t)i * stride, (size_t)s->hidden * 4);
}

/* Keep the residual stream after so many layers where it is asked for. A row's is its own thread's throughout. */
static void tap(const Model *m, const Pass *pass, int layers, int thread, int threads) {
    const int hidden = m->shape.hidden;
    for (int t = 0; t < m->tap_count; t++)
        if (m->taps[t] == layers)
            SHARE(pass->rows)
                memcpy(pass->tapped + ((int64_t)i * m->tap_count + t) * hidden, m->residual + (int64_t)i * hidden,
                       (size_t)hidden * 4);
}

static void run(const Model *m, const Pass *pass, int thread, int threads) {
    const Shape *s = &m->shape;
    if (m->fusion)
        begin_fused(m, pass, thread, threads);
    else
        SHARE(pass->rows) embed(m, pass->tokens[i], m->residual + (int64_t)i * s->hidden);
    tap(m, pass, 0, thread, threads);
    for (int l = 0; l < s->layers; l++) {
        run_layer(m, m->layers + l, pass, thread, threads);
        tap(m, pass, l + 1, thread, threads);
    }
    if (pass->wanted) {
        pool_barrier();
        SHARE(pass->wanted)
            rms_norm(m->residual + (int64_t)pass->wanted_rows[i] * s->hidden, m->norm, s->hidden, s->norm_eps,
                     m->normed, (int64_t)i * m->head.depth, s->bf16);
        pool_barrier();
        gemm(m, &m->head, m->normed, pass->wanted, PLAIN, pass->logits, m->head.columns, thread, threads);
    }
    if (s->kernels == KERNELS_AMX) amx_release();
    if (pass->ranking) {
        rank_share(pass->ranking, pass->logits, pass->wanted, m->head.columns, thread, threads);
        pool_barrier();
        SHARE(pass->wanted) rank_merge(pass->ranking, i, pass->wanted, threads);
    }
}

#endif
