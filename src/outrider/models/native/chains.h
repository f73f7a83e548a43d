/* Whole chains drafted by a head, level by level: the token drawn after a row is the next row, and its state the one that
 * row begins with. What TreeBuilder (drafters/tree_builder.py) grows of one child a node, with the same confidence to the
 * bit, but without a word to Python in between.
 */
#ifndef OUTRIDER_CHAINS_H
#define OUTRIDER_CHAINS_H

#include "decoder.h"

#include <string.h>

/* How likely the target is to follow the token drawn, where the likeliest has this share: Candidates.outlook. */
static double outlook(double share, int random) {
    if (share <= 0.0) return 0.0;
    share /= share > 1.0 ? share : 1.0;
    return random ? (1.0 + share) / 2 : share;
}

/* Where the chains that go on stand. */
typedef struct {
    int count;
    int32_t chain[MOST_ROWS];
    int32_t slot[MOST_ROWS], seen[MOST_ROWS]; /* cache rows before the drafted ones */
    double chance[MOST_ROWS];                 /* how likely the target is to get there */
} Running;

static Running begun_chains(const Pass *first) {
    Running now = {first->wanted};
    for (int i = 0; i < first->wanted; i++) {
        const int row = first->wanted_rows[i];
        now.chain[i] = i;
        now.slot[i] = first->slots[row];
        now.seen[i] = first->bases[row] + first->starts[row + 1] - first->starts[row];
        now.chance[i] = 1.0;
    }
    return now;
}

/* After a pass: note what each chain goes on with, and leave those that do. Their tokens and states are the next rows'. */
static void grow_chains(const Chains *d, const Pass *pass, int level, int hidden, Running *now) {
    const int chains = d->first->wanted;
    int left = 0;
    for (int i = 0; i < now->count; i++) {
        const int chain = now->chain[i], token = pass->ranking->tokens[2 * i + 1];
        const double floor = d->floors[chain];
        const double chance = now->chance[i] * outlook(pass->ranking->shares[2 * i], pass->ranking->noise[i].random);
        if (token < 0 || chance <= 0.0 || chance < floor) continue;
        d->tokens[level * chains + chain] = token;
        d->confidence[level * chains + chain] = chance;
        if (level + 1 == d->depths[chain] || chance < d->runs[chain]) continue;
        memcpy(d->states + (int64_t)left * hidden, pass->tapped + (int64_t)pass->wanted_rows[i] * hidden, (size_t)hidden * 4);
        d->numbers[left] = token;
        now->chain[left] = chain;
        now->slot[left] = now->slot[i];
        now->seen[left] = now->seen[i];
        now->chance[left++] = chance;
    }
    now->count = left;
}

/* One row of each chain that goes on, `level` rows behind where it began; its token is at the beginning of `numbers`. */
static Pass level_of_chains(const Chains *d, const Running *now, int level, int hidden) {
    const int rows = now->count;
    int32_t *slots = d->numbers + rows, *bases = slots + rows, *wanted = bases + rows, *starts = wanted + rows;
    int32_t *paths = starts + rows + 1;
    starts[0] = 0;
    for (int i = 0; i < rows; i++) {
        slots[i] = now->slot[i];
        bases[i] = now->seen[i];
        wanted[i] = i;
        starts[i + 1] = (i + 1) * level;
        for (int j = 0; j < level; j++) paths[i * level + j] = now->seen[i] + j;
    }
    return (Pass){
        .rows = rows, .wanted = rows, .tokens = d->numbers, .slots = slots, .bases = bases, .starts = starts, .paths = paths,
        .wanted_rows = wanted, .logits = d->first->logits, .tapped = d->states + (int64_t)d->first->wanted * hidden,
        .states = d->states,
    };
}

void outrider_draft(const Model *m, const Chains *d) {
    const int hidden = m->shape.hidden, chains = d->first->wanted;
    Noise noise[MOST_ROWS];
    int32_t tokens[2 * MOST_ROWS];
    float shares[2 * MOST_ROWS];
    Ranking ranking = *d->first->ranking;
    ranking.noise = noise;
    ranking.tokens = tokens;
    ranking.shares = shares;
    Running now = begun_chains(d->first);
    Pass pass = *d->first;
    for (int level = 0; now.count; level++) {
        if (level) pass = level_of_chains(d, &now, level, hidden);
        for (int i = 0; i < now.count; i++) noise[i] = d->noise[level * chains + now.chain[i]];
        pass.ranking = &ranking;
        outrider_forward(m, &pass);
        grow_chains(d, &pass, level, hidden, &now);
    }
}

#endif
