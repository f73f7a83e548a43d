/* The best few tokens of a row of logits and their probabilities, by likelihood and under the target's Gumbel noise: what
 * a drafter makes children of. Each thread looks at the columns it computed, which its caches still hold.
 *
 * Drafts need no exactness: fp32 throughout. Noise is computed only for tokens that may come in; see
 * sampling/native/row.h for why the filter lets all of those pass.
 */
#ifndef OUTRIDER_RANK_H
#define OUTRIDER_RANK_H

#include "decoder.h"

#include <math.h>

#include "vector.h"

#define UNIT 8388608.0f /* 2^23 */
#define SLACK 0.015625f

/* Keep `best` (count, falling) the best; the first of equals stays ahead. */
static void enter(Ranked *best, int count, Ranked candidate) {
    if (!(candidate.score > best[count - 1].score)) return;
    int at = count - 1;
    for (; at && candidate.score > best[at - 1].score; at--) best[at] = best[at - 1];
    best[at] = candidate;
}

static void forget_all(Ranked *best, int count) {
    for (int i = 0; i < count; i++) best[i] = (Ranked){-__builtin_inff(), 0, -1};
}

INLINE u16v mixed(u16v x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* k of noise.py for sixteen tokens. */
INLINE u16v uniforms(u16v tokens, const Noise *noise) {
    return mixed(mixed((tokens * 0x9e3779b9u) ^ noise->low) + noise->high) ^ 0x80000000u;
}

/* Columns of the largest logits. */
static void rank_likely(const float *logits, int first, int last, const Noise *noise, Partial *found, int count) {
    enum { SCANNED = 64 };
    for (int start = first; start < last; start += SCANNED) {
        const int size = last - start < SCANNED ? last - start : SCANNED;
        if (size == SCANNED) {
            const v16 *block = (const v16 *)(logits + start);
            v16 most = maximum(maximum(block[0], block[1]), maximum(block[2], block[3]));
            if (!any_above(most * splat(noise->inverse_temperature), splat(found->likely[count - 1].score))) continue;
        }
        for (int j = start; j < start + size; j++) {
            const float x = logits[j] * noise->inverse_temperature;
            enter(found->likely, count, (Ranked){x, x, j});
        }
    }
    found->largest = found->likely[0].x;
}

static void add_up(const float *logits, int first, int last, const Noise *noise, Partial *found) {
    const v16 scale = splat(noise->inverse_temperature), largest = splat(found->largest);
    v16 sums = splat(0.0f);
    int j = first;
    for (; j + LANES <= last; j += LANES) sums = sums + exponential(*(const v16 *)(logits + j) * scale - largest);
    found->total = sum(sums);
    for (; j < last; j++) found->total += expf(logits[j] * noise->inverse_temperature - found->largest);
}

/* Columns of the largest x + G. Scores are counted from the row's largest x here. */
static void rank_drawn(const float *logits, const int32_t *ids, int first, int last, const Noise *noise, Partial *found,
                       int count) {
    const float slope = UNIT / (float)M_LN2;
    const float scale = noise->inverse_temperature;
    float offset = __builtin_inff();
    for (int start = first; start < last; start += LANES) {
        const int size = last - start < LANES ? last - start : LANES;
        float x[LANES] = {0}, room[LANES];
        uint32_t tokens[LANES] = {0}, k[LANES];
        memcpy(x, logits + start, (size_t)size * 4);
        memcpy(tokens, ids + start, (size_t)size * 4);
        *(v16 *)x = *(v16 *)x * splat(scale);
        *(u16v *)k = uniforms(*(const u16v *)tokens, noise);
        const v16 j = __builtin_convertvector((i16)(~*(const u16v *)k >> 1), v16);
        *(v16 *)room = (*(v16 *)x - splat(found->largest)) * splat(slope) - __builtin_convertvector((i16)j, v16);
        if (!any_above(*(const v16 *)room + splat(offset), splat(-1e-37f))) continue; /* not below zero */
        for (int lane = 0; lane < size; lane++) {
            if (!(room[lane] + offset >= 0)) continue;
            const double u = ((double)k[lane] + 0.5) * 0x1p-32;
            const float score = (float)((double)(x[lane] - found->largest) - log(-log(u)));
            enter(found->drawn, count, (Ranked){score, x[lane], start + lane});
            offset = UNIT * (158.0f - found->drawn[count - 1].score / (float)M_LN2 + SLACK);
        }
    }
}

/* All wanted rows, in the columns that are `thread`'s. */
static void rank_share(const Ranking *ranking, const float *logits, int wanted, int stride, int thread, int threads) {
    const int pairs = stride / PANEL_PAIR, count = ranking->count;
    const int first = (int)((int64_t)pairs * thread / threads) * PANEL_PAIR;
    int last = (int)((int64_t)pairs * (thread + 1) / threads) * PANEL_PAIR;
    if (last > ranking->columns) last = ranking->columns;
    for (int row = 0; row < wanted; row++) {
        const float *mine = logits + (int64_t)row * stride;
        const Noise *noise = ranking->noise + row;
        Partial *found = ranking->partials + (int64_t)thread * wanted + row;
        forget_all(found->likely, count);
        forget_all(found->drawn, count);
        rank_likely(mine, first, last, noise, found, count);
        add_up(mine, first, last, noise, found);
        if (noise->random) rank_drawn(mine, ranking->ids, first, last, noise, found, count);
    }
}

static void answer(const Ranking *ranking, const Ranked *best, int at, float largest, float total) {
    for (int i = 0; i < ranking->count; i++) {
        const int column = best[i].column;
        ranking->tokens[at + i] = column < 0 ? -1 : ranking->ids[column];
        ranking->shares[at + i] = column < 0 ? 0.0f : expf(best[i].x - largest) / total;
    }
}

/* One row, all threads' shares together. */
static void rank_merge(const Ranking *ranking, int row, int wanted, int threads) {
    const int count = ranking->count;
    const int random = ranking->noise[row].random;
    Ranked likely[MOST_RANKED], drawn[MOST_RANKED];
    float largest = -__builtin_inff(), total = 0;
    forget_all(likely, count);
    forget_all(drawn, count);
    for (int t = 0; t < threads; t++) {
        const float here = ranking->partials[(int64_t)t * wanted + row].largest;
        largest = here > largest ? here : largest;
    }
    for (int t = 0; t < threads; t++) {
        const Partial *found = ranking->partials + (int64_t)t * wanted + row;
        const float below = found->largest - largest;
        if (found->likely[0].column < 0) continue;
        total += found->total * expf(below);
        for (int i = 0; i < count; i++) {
            enter(likely, count, found->likely[i]);
            Ranked moved = found->drawn[i];
            moved.score += below;
            if (random) enter(drawn, count, moved);
        }
    }
    int less = 0;
    for (int i = 0; i < count; i++) less += (likely[i].column >= 0) - (drawn[i].column >= 0);
    if (random && less) { /* not all scores are numbers, and nothing follows: as many can be drawn as are likely */
        forget_all(likely, count);
        forget_all(drawn, count);
    }
    answer(ranking, likely, (2 * row) * count, largest, total);
    answer(ranking, random ? drawn : likely, (2 * row + 1) * count, largest, total);
}

#endif
