/* A layer of experts: a router chooses some of the layer's MLPs for each row, and what they give is added in the shares it
 * says. Rows that chose the same expert are multiplied together, so that its weights are read once for all of them.
 *
 * No row's bits depend on another row: products never do (gemm.h), and a row's experts are added in the order of their
 * numbers, whoever else chose them.
 */
#ifndef OUTRIDER_EXPERTS_H
#define OUTRIDER_EXPERTS_H

#include "decoder.h"

#include "gemm.h"
#include "gemm_int8.h"
#include "pool.h"
#include "vector.h"

/* softmax over all experts, of which the `used` largest count; of equal ones the first. Where scores are no numbers, some
 * experts are chosen all the same, and their shares are none. */
static void choose_experts(const Routing *routing, int columns, int row) {
    const int count = routing->count, used = routing->used;
    float *x = routing->scores + (int64_t)row * columns, largest = x[0], chosen_total = 0.0f;
    int32_t *chosen = routing->chosen + (int64_t)row * used;
    float *shares = routing->shares + (int64_t)row * used;
    v16 total = splat(0.0f);
    uint8_t taken[MOST_EXPERTS] = {0};
    for (int e = 1; e < count; e++) largest = x[e] > largest ? x[e] : largest;
    for (int e = 0; e < count; e += LANES) *(v16 *)(x + e) = exponential(*(const v16 *)(x + e) - splat(largest));
    for (int e = count; e < columns; e++) x[e] = 0.0f;
    for (int e = 0; e < columns; e += LANES) total = total + *(const v16 *)(x + e);
    for (int n = 0; n < used; n++) {
        int best = -1;
        for (int e = 0; e < count; e++)
            if (!taken[e] && (best < 0 || x[e] > x[best])) best = e;
        taken[best] = 1;
        chosen_total += x[best];
    }
    const float whole = routing->normalised ? chosen_total : sum(total);
    for (int e = 0, n = 0; n < used; e++)
        if (taken[e]) {
            chosen[n] = e;
            shares[n++] = x[e] / whole;
        }
}

/* Places, one for each row and each of its experts: those of an expert side by side, rows rising, experts rising. */
typedef struct {
    int32_t starts[MOST_EXPERTS + 1];         /* of each expert's */
    int32_t rows[MOST_ROWS * MOST_USED];      /* whose a place is */
    int32_t places[MOST_ROWS * MOST_USED];    /* [row][used] */
} Places;

static void group_by_expert(const Routing *routing, int rows, Places *by) {
    const int all = rows * routing->used;
    int32_t next[MOST_EXPERTS];
    memset(by->starts, 0, sizeof by->starts);
    for (int i = 0; i < all; i++) by->starts[routing->chosen[i] + 1]++;
    for (int e = 0; e < routing->count; e++) {
        by->starts[e + 1] += by->starts[e];
        next[e] = by->starts[e];
    }
    for (int i = 0; i < all; i++) {
        by->places[i] = next[routing->chosen[i]]++;
        by->rows[by->places[i]] = i / routing->used;
    }
}

/* Row `row` of matrix inputs. */
INLINE char *input_at(const Shape *s, const void *inputs, int64_t row, int depth) {
    return (char *)inputs + row * depth * (input_form(s) == BF16 ? 2 : 4);
}

/* Room of this thread's own for rows of a layer's inputs. */
INLINE float *gathered_at(const Model *m, const Layer *layer, int thread) {
    return m->routing->gathered + (int64_t)thread * MOST_ROWS * layer->router.depth;
}

/* The share of `thread` of all rows' scores. In fp32 whatever the model's numbers are: few numbers that decide much. */
static void score_experts(const Model *m, const Layer *layer, int rows, int thread, int threads) {
    float block[MOST_ROWS * PANEL_PAIR] __attribute__((aligned(64)));
    const Matrix *w = &layer->router;
    const int64_t pitch = (int64_t)w->depth * PANEL * 4;
    const float *x = m->normed;
    if (input_form(&m->shape) == BF16 && thread < w->columns / PANEL_PAIR) {
        float *wide = gathered_at(m, layer, thread);
        for (int j = 0; j < rows * w->depth; j += LANES) *(v16 *)(wide + j) = load(m->normed, j, 1);
        x = wide;
    }
    for (int pair = thread; pair < w->columns / PANEL_PAIR; pair += threads) {
        pair_of((const char *)w->data + 2 * pair * pitch, pitch, x, w->depth, w->depth, rows, 0, 0, block);
        finish(w, pair, block, rows, FP32, PLAIN, 0, m->routing->scores, w->columns);
    }
}

/* The share of `thread` of a product of these rows of x, which it gathers in its own room; `which` NULL: of the first so many.
 * Threads do not wait for one another, and narrow rows each for itself: a small part of reading the weights. */
static void expert_product(const Model *m, const Matrix *w, const void *x, const int32_t *which, int rows, Epilogue epilogue,
                           void *y, int y_stride, float *own, int thread, int threads) {
    const Shape *s = &m->shape;
    if (s->integers && !w->strips) {
        const Lines lines = product_lines(m, m->scratch + thread * m->scratch_size, w, rows, 1);
        for (int g = 0; g < lines.groups; g++) narrow_group(x, which, w->depth, w->inputs, lines, g);
        pairs_int8(m, w, lines, rows, epilogue, y, y_stride, thread, threads);
        return;
    }
    if (which && rows == 1) {
        x = input_at(s, x, which[0], w->depth);
    } else if (which) {
        const size_t size = (size_t)(input_at(s, x, 1, w->depth) - (const char *)x);
        for (int r = 0; r < rows; r++) memcpy(input_at(s, own, r, w->depth), input_at(s, x, which[r], w->depth), size);
        x = own;
    }
    /* Of more rows in integers, threads would narrow some each and wait for one another. */
    const int most = s->integers && rows > ALONE_ROWS ? ALONE_ROWS : rows;
    for (int r = 0; r < rows; r += most)
        product(m, w, input_at(s, x, r, w->depth), rows - r < most ? rows - r : most, epilogue,
                (float *)y + (int64_t)r * y_stride, y_stride, thread, threads);
}

/* From the rows of `normed` to those of `update`. */
static void run_experts(const Model *m, const Layer *layer, int rows, int thread, int threads) {
    const Shape *s = &m->shape;
    const Routing *routing = m->routing;
    const int used = routing->used, depth = layer->down.depth, columns = layer->down.columns;
    Places by;
    float *own = gathered_at(m, layer, thread);
    score_experts(m, layer, rows, thread, threads);
    pool_barrier();
    for (int row = thread; row < rows; row += threads) choose_experts(routing, layer->router.columns, row);
    pool_barrier();
    group_by_expert(routing, rows, &by);
#define EACH_EXPERT for (int e = 0, at, count; e < routing->count; e++) \
    if (at = by.starts[e], count = by.starts[e + 1] - at, count)
    EACH_EXPERT expert_product(m, &layer->experts[e].gate_up, m->normed, by.rows + at, count, GATED,
                               input_at(s, m->gated, at, depth), depth, own, thread, threads);
    pool_barrier();
    EACH_EXPERT expert_product(m, &layer->experts[e].down, input_at(s, m->gated, at, depth), 0, count, PLAIN,
                               routing->outputs + (int64_t)at * columns, columns, own, thread, threads);
#undef EACH_EXPERT
    pool_barrier();
    for (int row = thread; row < rows; row += threads) {
        const float *shares = routing->shares + (int64_t)row * used;
        float *to = m->update + (int64_t)row * columns;
        for (int j = 0; j < columns; j += LANES) {
            v16 total = splat(0.0f);
            for (int n = 0; n < used; n++)
                total = fused(splat(shares[n]),
                              *(const v16 *)(routing->outputs + (int64_t)by.places[row * used + n] * columns + j), total);
            *(v16 *)(to + j) = total;
        }
    }
    pool_barrier();
}

#endif
