/* One pass of the whole decoder over ragged rows, compiled once per instruction set (isa_*.c). */
#ifndef OUTRIDER_PASS_H
#define OUTRIDER_PASS_H

#include "decoder.h"

#include <math.h>

#include "attention.h"
#include "gemm.h"
#include "gemm_int8.h"
#include "gemm_screen.h"
#include "pool.h"
#include "rank.h"
#include "stored.h"
#include "vector.h"

#define SHARE(n) for (int i = thread; i < (n); i += threads)

static void product(const Model *m, const Matrix *w, const void *x, int rows, Epilogue epilogue, void *y, int y_stride,
                    int thread, int threads) {
    (w->strips ? gemm_stored : m->shape.integers ? gemm_int8 : gemm)(m, w, x, rows, epilogue, y, y_stride, thread, threads);
}

#include "experts.h" /* which asks for such products */

INLINE float inverse_rms(const float *x, int size, float eps) {
    v16 squares = splat(0.0f);
    for (int j = 0; j < size; j += LANES) {
        v16 part = *(const v16 *)(x + j);
        squares = squares + part * part;
    }
    return 1.0f / sqrtf(sum(squares) / (float)size + eps);
}

/* x / rms(x) * weight, fp32 in. size is a multiple of 16. */
static void rms_norm(const float *x, const float *weight, int size, float eps, void *out, int64_t at, Form form) {
    const v16 scale = splat(inverse_rms(x, size, eps));
    for (int j = 0; j < size; j += LANES)
        store(out, at + j, *(const v16 *)(x + j) * scale * *(const v16 *)(weight + j), form);
}

static void layer_norm(const float *x, const float *weight, const float *bias, int size, float eps, void *out, int64_t at,
                       Form form) {
    v16 total = splat(0.0f), squares = splat(0.0f);
    for (int j = 0; j < size; j += LANES) total = total + *(const v16 *)(x + j);
    const v16 mean = splat(sum(total) / (float)size);
    for (int j = 0; j < size; j += LANES) {
        v16 part = *(const v16 *)(x + j) - mean;
        squares = squares + part * part;
    }
    const v16 scale = splat(1.0f / sqrtf(sum(squares) / (float)size + eps));
    for (int j = 0; j < size; j += LANES) {
        v16 part = (*(const v16 *)(x + j) - mean) * scale;
        store(out, at + j, part * *(const v16 *)(weight + j) + *(const v16 *)(bias + j), form);
    }
}

/* What goes into a matrix: a row by the family's norm, or as it is where there is none. */
static void normalise(const Shape *s, const float *x, const float *weight, const float *bias, void *out, int64_t at) {
    const Form form = input_form(s);
    if (bias)
        layer_norm(x, weight, bias, s->hidden, s->norm_eps, out, at, form);
    else if (weight)
        rms_norm(x, weight, s->hidden, s->norm_eps, out, at, form);
    else
        for (int j = 0; j < s->hidden; j += LANES) store(out, at + j, *(const v16 *)(x + j), form);
}

/* residual += update, normalised first where the family asks for it. Every thread may do so: update stays as it is. */
static void add(const Shape *s, float *residual, const float *update, const float *out_norm) {
    const v16 inverse = splat(out_norm ? inverse_rms(update, s->hidden, s->norm_eps) : 1.0f);
    for (int j = 0; j < s->hidden; j += LANES) {
        v16 part = *(const v16 *)(update + j);
        if (out_norm) part = part * inverse * *(const v16 *)(out_norm + j);
        *(v16 *)(residual + j) = *(const v16 *)(residual + j) + part * splat(s->residual_scale);
    }
}

/* A row of the packed head, which lies scattered: see gemm.h for the layouts. */
static void packed_row(const Matrix *head, int column, int bf16, float scale, float *out) {
    const int64_t panel = column / PANEL;
    const int lane = column % PANEL, hidden = head->inputs;
    if (head->scales) {
        const int8_t *from = (const int8_t *)head->data + panel * head->depth * PANEL + 4 * lane;
        const uint16_t *scales = head->scales + panel * BLOCKS(head->depth) * PANEL + lane;
        for (int k = 0; k < hidden; k++)
            out[k] = from[k / 4 * 4 * PANEL + k % 4] * bf16_to_float(scales[k / BLOCK * PANEL]) * scale;
        return;
    }
    if (!bf16) {
        const float *from = (const float *)head->data + panel * head->depth * PANEL + lane;
        for (int k = 0; k < hidden; k++) out[k] = from[(int64_t)k * PANEL] * scale;
        return;
    }
    const uint16_t *from = (const uint16_t *)head->data + panel * head->depth * PANEL + 2 * lane;
    for (int k = 0; k < hidden; k += 2) {
        out[k] = bf16_to_float(from[k * PANEL]) * scale;
        out[k + 1] = bf16_to_float(from[k * PANEL + 1]) * scale;
    }
}

static void embed(const Model *m, int token, float *out) {
    const int hidden = m->shape.hidden;
    const int64_t at = (int64_t)token * hidden;
    const v16 scale = splat(m->shape.embed_scale);
    if (m->stored_embedding) {
        const int kind = m->stored_embedding - 1;
        const int64_t width = hidden / kind_of(kind).inputs * kind_of(kind).bytes;
        row_of((const uint8_t *)m->embedding + token * width, kind, hidden, out);
        for (int j = 0; j < hidden; j += LANES) *(v16 *)(out + j) = *(const v16 *)(out + j) * scale;
    } else if (!m->embedding) {
        packed_row(&m->head, token, m->shape.bf16, m->shape.embed_scale, out);
    } else if (m->embedding_scales) {
        const uint16_t *scales = m->embedding_scales + (int64_t)token * BLOCKS(hidden);
        for (int j = 0; j < hidden; j += LANES)
            *(v16 *)(out + j) = from_int8(*(const b16 *)((const int8_t *)m->embedding + at + j)) *
                                splat(bf16_to_float(scales[j / BLOCK])) * scale;
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

/* Normalise all query heads of a row together, and all key heads. */
static void prepare_row(const Model *m, const Layer *layer, int row) {
    const Shape *s = &m->shape;
    const int queries = s->heads * s->head_dim;
    float *qkv = m->qkv + (int64_t)row * layer->qkv.columns;
    rms_norm(qkv, layer->q_norm, queries, s->norm_eps, qkv, 0, FP32);
    rms_norm(qkv + queries, layer->k_norm, s->kv_heads * s->head_dim, s->norm_eps, qkv + queries, 0, FP32);
}

/* Normalise and rotate one key head of a row and the queries that share it, and write its key and value to the cache. */
static void prepare_head(const Model *m, const Layer *layer, const Pass *pass, int row, int kv_head) {
    const Shape *s = &m->shape;
    const int dim = s->head_dim, group = s->heads / s->kv_heads, end = pass->starts[row + 1];
    const int index = pass->paths[end - 1], slot = pass->slots[row];
    const int position = pass->bases[row] + end - pass->starts[row] - 1;
    const float *cosines = layer->cosines + (int64_t)position * (dim / 2);
    const float *sines = layer->sines + (int64_t)position * (dim / 2);
    float *qkv = m->qkv + (int64_t)row * layer->qkv.columns;
    float *key = qkv + (s->heads + kv_head) * dim;
    const float *value = key + s->kv_heads * dim;
    for (int i = 0; i <= group; i++) {
        float *x = i < group ? qkv + (kv_head * group + i) * dim : key;
        const float *norm = i < group ? layer->q_norm : layer->k_norm;
        if (norm && !s->qk_norm_wide) rms_norm(x, norm, dim, s->norm_eps, x, 0, FP32);
        rotate(x, cosines, sines, dim);
    }
    const int64_t head = head_at(s, slot, kv_head);
    char *keys = (char *)layer->keys + head, *values = (char *)layer->values + head;
    for (int d = 0; d < dim; d += LANES) {
        const v16 from_key = *(const v16 *)(key + d), from_value = *(const v16 *)(value + d);
        const int64_t key_to = key_at(s, index, d), value_to = value_at(s, index, d);
        if (s->bf16) { /* two dimensions of a key lie side by side, and so do values of two positions */
            uint16_t narrow_key[LANES], narrow_value[LANES];
            *(h16 *)narrow_key = narrow(from_key);
            *(h16 *)narrow_value = narrow(from_value);
            for (int j = 0; j < LANES; j += 2) memcpy((uint16_t *)keys + key_to + j * PANEL, narrow_key + j, 4);
            for (int j = 0; j < LANES; j++) ((uint16_t *)values)[value_to + 2 * j] = narrow_value[j];
        } else {
            for (int j = 0; j < LANES; j++) ((float *)keys)[key_to + j * PANEL] = key[d + j];
            *(v16 *)((float *)values + value_to) = from_value;
        }
    }
    /* The slot's last row, where its prefix does not reach: behind it lies what somebody else has left. */
    const int base = pass->bases[row], is_last = row + 1 == pass->rows || pass->slots[row + 1] != slot;
    if (is_last && (base == 0 || index / PANEL_PAIR != (base - 1) / PANEL_PAIR))
        clear_values(s, values, s->capacity, index + 1, up_to(index + 1, PANEL_PAIR));
}

/* Rows of one slot behind the same prefix, from `row` on: how many. */
INLINE int run_length(const Pass *pass, int row) {
    int next = row + 1;
    while (next < pass->rows && pass->slots[next] == pass->slots[row] && pass->bases[next] == pass->bases[row]) next++;
    return next - row;
}

/* In how many parts the queries of a run are taken: as few as can be, unless some threads would have nothing to do. */
static int parts_of(const Shape *s, int queries, int rows_are_all, int threads) {
    const int fewest = (queries + together(s) - 1) / together(s), most = rows_are_all ? queries : fewest;
    const int begin = s->bf16 && s->kernels == KERNELS_AMX ? ROW_TILE : 4; /* what a part costs, in queries, however few it has */
    int best = fewest, least = 0;
    for (int parts = fewest; parts <= most; parts++) {
        const int each = (queries + parts - 1) / parts, turns = (parts * s->kv_heads + threads - 1) / threads;
        const int cost = turns * (each + begin);
        if (!least || cost < least) best = parts, least = cost;
    }
    return best;
}

/* The share of `thread` in the attention of all rows. */
static void attend_all(const Model *m, const Layer *layer, const Pass *pass, int thread, int threads) {
    const Shape *s = &m->shape;
    const int group = s->heads / s->kv_heads;
    int task = 0;
    for (int row = 0, rows; row < pass->rows; row += rows) {
        rows = run_length(pass, row);
        const int queries = rows * group, parts = parts_of(s, queries, rows == pass->rows, threads);
        for (int kv_head = 0; kv_head < s->kv_heads; kv_head++) /* a head's queries find its keys in the cache */
            for (int part = 0; part < parts; part++)
                if (task++ % threads == thread) {
                    const Queries some = {pass, row, group, queries * part / parts, queries * (part + 1) / parts};
                    attend(m, layer, &some, kv_head, thread);
                }
    }
}

/* What goes into a layer's qkv; for the first of a drafting head the token's embedding comes in here. */
static void attention_input(const Model *m, const Layer *layer, int row) {
    const Shape *s = &m->shape;
    const Form form = input_form(s);
    float *residual = m->residual + (int64_t)row * s->hidden;
    const int64_t at = (int64_t)row * layer->qkv.depth;
    const Fusion *fusion = layer == m->layers ? m->fusion : 0;
    if (!fusion) {
        normalise(s, residual, layer->attention_norm, layer->attention_norm_bias, m->normed, at);
        return;
    }
    const float *embedded = fusion->embedded + (int64_t)row * s->hidden;
    for (int j = 0; j < s->hidden; j += LANES) store(m->normed, at + j, *(const v16 *)(embedded + j), form);
    rms_norm(residual, fusion->state_norm, s->hidden, s->norm_eps, m->normed, at + s->hidden, form);
    if (fusion->normed_residual)
        rms_norm(residual, fusion->state_norm, s->hidden, s->norm_eps, residual, 0, FP32);
}

/* Every thread keeps a residual stream of its own of all rows: where rows are few, adding and normalising them again
 * takes less than waiting for another thread to have done it. */
INLINE int alone(const Model *m, const Pass *pass, int threads) {
    return m->shape.integers && by_itself(m, pass->rows, threads);
}

/* Rows of this thread, which are neighbours: two threads that write to the same cache lines, or read what the other has
 * written, wait for one another. */
#define PART(n) for (int i = (n) * thread / threads; i < (n) * (thread + 1) / threads; i++)

/* The rows this thread keeps the residual stream of. */
#define OWN(n)                                                         \
    for (int own_ = alone(m, pass, threads), i = own_ ? 0 : (n) * thread / threads, \
             end_ = own_ ? (n) : (n) * (thread + 1) / threads; i < end_; i++)

/* Own rows are done, and read next. */
INLINE void rows_done(const Model *m, const Pass *pass, int threads) {
    if (!alone(m, pass, threads)) pool_barrier();
}

static void run_layer(const Model *m, const Layer *layer, const Pass *pass, int thread, int threads) {
    const Shape *s = &m->shape;
    const int rows = pass->rows, hidden = s->hidden, heads = rows * s->kv_heads;
    OWN(rows) attention_input(m, layer, i);
    rows_done(m, pass, threads);
    product(m, &layer->qkv, m->normed, rows, PLAIN, m->qkv, layer->qkv.columns, thread, threads);
    pool_barrier();
    if (s->qk_norm_wide) {
        PART(rows) prepare_row(m, layer, i);
        pool_barrier();
    }
    if (rows == 1)
        SHARE(heads) prepare_head(m, layer, pass, 0, i);
    else /* neighbours in the cache by the same thread: two would write to the same cache lines */
        for (int i = heads * thread / threads; i < heads * (thread + 1) / threads; i++)
            prepare_head(m, layer, pass, i % rows, i / rows);
    if (rows > 1 || parts_of(s, s->heads / s->kv_heads, 1, threads) > 1) pool_barrier(); /* else heads are this thread's own */
    attend_all(m, layer, pass, thread, threads);
    pool_barrier();
    product(m, &layer->o, m->attended, rows, PLAIN, m->update, layer->o.columns, thread, threads);
    pool_barrier();
    OWN(rows) {
        float *residual = m->residual + (int64_t)i * hidden;
        add(s, residual, m->update + (int64_t)i * layer->o.columns, layer->attention_out_norm);
        normalise(s, residual, layer->mlp_norm, layer->mlp_norm_bias, m->normed, (int64_t)i * layer->gate_up.depth);
    }
    rows_done(m, pass, threads);
    if (layer->experts) {
        run_experts(m, layer, rows, thread, threads);
    } else {
        product(m, &layer->gate_up, m->normed, rows, GATED, m->gated, layer->down.depth, thread, threads);
        pool_barrier();
        product(m, &layer->down, m->gated, rows, PLAIN, m->update, layer->down.columns, thread, threads);
        pool_barrier();
    }
    OWN(rows)
        add(s, m->residual + (int64_t)i * hidden, m->update + (int64_t)i * layer->down.columns, layer->mlp_out_norm);
}

/* The residual stream a head starts with, and its tokens' normalised embeddings. */
static void begin_fused(const Model *m, const Pass *pass, int thread, int threads) {
    const Shape *s = &m->shape;
    const Fusion *fusion = m->fusion;
    const Matrix *fc = &fusion->fc;
    SHARE(pass->rows) {
        float *embedded = fusion->embedded + (int64_t)i * s->hidden;
        embed(fusion->target, pass->tokens[i], embedded);
        rms_norm(embedded, m->layers->attention_norm, s->hidden, s->norm_eps, embedded, 0, FP32);
        if (pass->features)
            for (int j = 0; j < fc->inputs; j += LANES)
                store(fusion->features, (int64_t)i * fc->depth + j,
                      *(const v16 *)(pass->features + (int64_t)i * fc->inputs + j), input_form(s));
    }
    pool_barrier();
    if (pass->features) {
        product(m, fc, fusion->features, pass->rows, PLAIN, m->update, fc->columns, thread, threads);
        pool_barrier();
    }
    const float *states = pass->features ? m->update : pass->states;
    const int stride = pass->features ? fc->columns : s->hidden;
    OWN(pass->rows)
        memcpy(m->residual + (int64_t)i * s->hidden, states + (int64_t)i * stride, (size_t)s->hidden * 4);
}

/* Keep the residual stream after so many layers where it is asked for. A row's is its own thread's throughout. */
static void tap(const Model *m, const Pass *pass, int layers, int thread, int threads) {
    const int hidden = m->shape.hidden;
    for (int t = 0; t < m->tap_count; t++)
        if (m->taps[t] == layers)
            PART(pass->rows)
                memcpy(pass->tapped + ((int64_t)i * m->tap_count + t) * hidden, m->residual + (int64_t)i * hidden,
                       (size_t)hidden * 4);
}

/* Scaled and capped. */
static void bend_logits(const Model *m, const Pass *pass, int thread, int threads) {
    const Shape *s = &m->shape;
    SHARE(pass->wanted * m->head.columns / LANES) {
        v16 *at = (v16 *)pass->logits + i;
        v16 x = *at * splat(s->logit_scale);
        *at = s->logit_cap != 0.0f ? capped(x, s->logit_cap) : x;
    }
}

static void run(const Model *shared, const Pass *pass, int thread, int threads) {
    Model own = *shared;
    const Model *m = &own;
    const Shape *s = &m->shape;
    if (alone(shared, pass, threads)) {
        own.residual += (int64_t)thread * pass->rows * s->hidden;
        own.normed = (float *)own.normed + (int64_t)thread * pass->rows * m->layers->qkv.depth;
    }
    if (m->fusion)
        begin_fused(m, pass, thread, threads);
    else
        OWN(pass->rows) embed(m, pass->tokens[i], m->residual + (int64_t)i * s->hidden);
    tap(m, pass, 0, thread, threads);
    for (int l = 0; l < s->layers; l++) {
        run_layer(m, m->layers + l, pass, thread, threads);
        tap(m, pass, l + 1, thread, threads);
    }
    if (pass->wanted) {
        rows_done(m, pass, threads);
        OWN(pass->wanted)
            normalise(s, m->residual + (int64_t)pass->wanted_rows[i] * s->hidden, m->norm, m->norm_bias, m->normed,
                      (int64_t)i * m->head.depth);
        rows_done(m, pass, threads);
        if (m->head.screen)
            gemm_screened(m, &m->head, m->normed, pass->wanted, pass->logits, m->head.columns, thread, threads);
        else
            product(m, &m->head, m->normed, pass->wanted, pass->wanted > ROW_TILE ? AWAY : PLAIN, pass->logits,
                    m->head.columns, thread, threads);
        if (s->logit_scale != 1.0f || s->logit_cap != 0.0f) {
            pool_barrier();
            bend_logits(m, pass, thread, threads);
        }
    }
    if (s->kernels == KERNELS_AMX) amx_release();
    if (pass->ranking) {
        pool_barrier();
        rank_share(pass->ranking, pass->logits, pass->wanted, m->head.columns, thread, threads);
        pool_barrier();
        SHARE(pass->wanted) rank_merge(pass->ranking, i, pass->wanted, threads);
    }
}

/* What an isa_*.c compiles. */
#define DEFINE(ISA)                                                                                                  \
    void pass_##ISA(const Model *m, const Pass *pass, int thread, int threads) { run(m, pass, thread, threads); }    \
    void product_##ISA(const Model *m, const Product *p, int thread, int threads) {                                  \
        product(m, p->matrix, p->x, p->rows, PLAIN, p->y, p->matrix->columns, thread, threads);                      \
        if (m->shape.kernels == KERNELS_AMX) amx_release();                                                          \
    }

#endif
