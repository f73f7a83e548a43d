/* Whole trees drafted by a head, level by level: what is ranked behind a row becomes nodes, the most promising of them the
 * next rows, with the states that the rows before them ended with. What BestFirstTree (drafters/best_first_tree.py) grows,
 * to the bit, but without a word to Python in between. Of one child a node that is a chain, as TreeBuilder grows it.
 */
#ifndef OUTRIDER_DRAFTS_H
#define OUTRIDER_DRAFTS_H

#include "decoder.h"

#include <string.h>

/* What may follow a row, and how many of those are drawn: Candidates of drafters/candidates.py. */
typedef struct {
    int count, random, drawn;
    const int32_t *likely, *tokens; /* the likeliest, and in the order in which they are drawn */
    const float *likely_shares, *shares;
    double expected, spent;
} Followers;

static Followers followers(const Ranking *ranking, int row) {
    const int count = ranking->count, at = 2 * row * count;
    return (Followers){
        .count = count, .random = ranking->noise[row].random, .likely = ranking->tokens + at,
        .tokens = ranking->tokens + at + count, .likely_shares = ranking->shares + at, .shares = ranking->shares + at + count,
    };
}

static int was_drawn(const Followers *f, int token) {
    for (int i = 0; i < f->drawn; i++)
        if (f->tokens[i] == token) return 1;
    return 0;
}

/* How likely the target is to follow the next one. */
static double outlook(const Followers *f) {
    double best = 0.0;
    for (int i = 0; i < f->count; i++)
        if (f->likely_shares[i] > best && !was_drawn(f, f->likely[i])) best = f->likely_shares[i];
    if (best <= 0.0) return 0.0;
    const double left = 1.0 - f->spent;
    best /= left > best ? left : best;
    if (f->random && !f->drawn) best = (1.0 + best) / 2;
    return (1.0 - f->expected) * best;
}

typedef struct {
    const Wanted *wanted;
    int slot, seen;  /* cache rows before the drafted ones */
    int rows;        /* drafted ones */
    int count, size; /* nodes looked at, and kept */
    int width;       /* of the level */
    Node *nodes;
    int32_t *kept;  /* the most promising nodes, falling */
    int32_t *level; /* those whose followers are looked at next, falling */
} Tree;

/* Put a node among the most promising, behind those that promise as much; whether it is one of them. */
static int enter_node(const Node *nodes, int node, int32_t *best, int *count, int most) {
    const double confidence = nodes[node].confidence;
    if (*count == most && confidence <= nodes[best[most - 1]].confidence) return 0;
    int at = *count < most ? (*count)++ : most - 1;
    for (; at && confidence > nodes[best[at - 1]].confidence; at--) best[at] = best[at - 1];
    best[at] = node;
    return 1;
}

/* Look at what may follow each node of the level, ranked from `row` on; what the next level is. */
static void grow(Tree *tree, const Ranking *ranking, int row, int depth) {
    const Wanted *wanted = tree->wanted;
    Node *nodes = tree->nodes;
    int32_t next[MOST_ROWS];
    int found = 0;
    for (int i = 0; i < tree->width; i++) {
        const int parent = tree->level[i];
        const double chance = parent < 0 ? 1.0 : nodes[parent].confidence;
        Followers after = followers(ranking, row + i);
        while (after.drawn < wanted->branching) {
            const int token = after.tokens[after.drawn];
            const double share = outlook(&after), confidence = chance * share;
            if (token < 0 || !(confidence > 0.0) || confidence < wanted->floor) break;
            nodes[tree->count] = (Node){confidence, token, parent};
            if (!enter_node(nodes, tree->count, tree->kept, &tree->size, wanted->nodes)) break;
            enter_node(nodes, tree->count++, next, &found, wanted->width);
            after.expected += share;
            after.spent += after.shares[after.drawn++];
        }
    }
    /* Of a node that has been pushed out no follower can come in. */
    double least = wanted->expand_node, together = 0.0;
    if (tree->size == wanted->nodes) {
        const double last = nodes[tree->kept[tree->size - 1]].confidence;
        least = last > least ? last : least;
    }
    for (tree->width = 0; tree->width < found && nodes[next[tree->width]].confidence >= least; tree->width++) {
        tree->level[tree->width] = next[tree->width];
        together += nodes[next[tree->width]].confidence;
    }
    if (depth == wanted->depth || together < wanted->expand_level) tree->width = 0;
}

/* What a pass of the trees' levels points into. */
typedef struct {
    int32_t tokens[MOST_ROWS], slots[MOST_ROWS], bases[MOST_ROWS], starts[MOST_ROWS + 1], wanted[MOST_ROWS];
} Rows;

/* The levels as rows, so many tokens behind where the trees begin; `before`: the pass that ran the nodes before them. */
static Pass pass_of_level(const Drafts *d, Tree *trees, const Pass *before, int depth, int hidden, Rows *to) {
    int rows = 0;
    to->starts[0] = 0;
    for (int t = 0; t < d->first->wanted; t++) {
        Tree *tree = trees + t;
        for (int i = 0; i < tree->width; i++, rows++) {
            Node *node = tree->nodes + tree->level[i];
            const int place = node->parent < 0 ? d->first->wanted_rows[t] : tree->nodes[node->parent].place;
            memcpy(d->states + (int64_t)rows * hidden, before->tapped + (int64_t)place * hidden, (size_t)hidden * 4);
            node->place = rows;
            node->row = tree->rows++;
            to->tokens[rows] = node->token;
            to->slots[rows] = tree->slot;
            to->bases[rows] = tree->seen;
            to->wanted[rows] = rows;
            to->starts[rows + 1] = (rows + 1) * depth;
            for (int j = depth, above = tree->level[i]; j--; above = tree->nodes[above].parent)
                d->paths[rows * depth + j] = tree->seen + tree->nodes[above].row;
        }
    }
    return (Pass){
        .rows = rows, .wanted = rows, .tokens = to->tokens, .slots = to->slots, .bases = to->bases, .starts = to->starts,
        .paths = d->paths, .wanted_rows = to->wanted, .logits = d->first->logits,
        .tapped = d->states + (int64_t)MOST_ROWS * hidden, .states = d->states,
    };
}

/* Where the trees begin. */
static void begin_trees(const Drafts *d, Tree *trees, int32_t *levels) {
    const Pass *first = d->first;
    int32_t *kept = d->tokens; /* which stand there in the end */
    Node *nodes = d->looked_at;
    for (int t = 0; t < first->wanted; t++) {
        const Wanted *wanted = d->wanted + t;
        const int row = first->wanted_rows[t], seen = first->bases[row] + first->starts[row + 1] - first->starts[row];
        levels[0] = -1;
        trees[t] = (Tree){wanted, first->slots[row], seen, .width = 1, .nodes = nodes, .kept = kept, .level = levels};
        nodes += wanted->branching * (1 + (wanted->depth - 1) * wanted->width);
        kept += wanted->nodes;
        levels += wanted->width;
    }
}

/* The nodes kept, in the order in which they were found. */
static void end_tree(Tree *tree, int32_t *tokens, int32_t *parents, double *confidence) {
    for (int i = 1; i < tree->size; i++) {
        const int32_t node = tree->kept[i];
        int at = i;
        for (; at && tree->kept[at - 1] > node; at--) tree->kept[at] = tree->kept[at - 1];
        tree->kept[at] = node;
    }
    for (int i = 0; i < tree->size; i++) {
        Node *node = tree->nodes + tree->kept[i];
        node->place = i; /* from now on: a parent comes before its children */
        tokens[i] = node->token;
        parents[i] = node->parent < 0 ? -1 : tree->nodes[node->parent].place;
        confidence[i] = node->confidence;
    }
}

void outrider_draft(const Model *m, const Drafts *d) {
    const int count = d->first->wanted;
    Tree trees[MOST_ROWS];
    Rows room;
    Noise noise[MOST_ROWS];
    int32_t levels[MOST_ROWS], tokens[2 * MOST_RANKED * MOST_ROWS];
    float shares[2 * MOST_RANKED * MOST_ROWS];
    Ranking ranking = *d->first->ranking;
    ranking.noise = noise;
    ranking.tokens = tokens;
    ranking.shares = shares;
    begin_trees(d, trees, levels);
    Pass pass = *d->first;
    for (int depth = 0; pass.rows;) {
        for (int t = 0, row = 0; t < count; t++)
            for (int i = 0; i < trees[t].width; i++) noise[row++] = d->noise[depth * count + t];
        pass.ranking = &ranking;
        outrider_forward(m, &pass);
        depth++;
        for (int t = 0, row = 0, width; t < count; t++, row += width) {
            width = trees[t].width;
            grow(trees + t, &ranking, row, depth);
        }
        pass = pass_of_level(d, trees, &pass, depth, m->shape.hidden, &room);
    }
    for (int t = 0, at = 0; t < count; at += d->wanted[t++].nodes) {
        d->sizes[t] = trees[t].size;
        end_tree(trees + t, d->tokens + at, d->parents + at, d->confidence + at);
    }
}

#endif
