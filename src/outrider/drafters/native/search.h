/* What may follow a text: `continuations`, `copied` and the two searches of suffix_search.py, number for number (the
   order of every sum and product is the same, and nothing is contracted). */
#ifndef OUTRIDER_SEARCH_H
#define OUTRIDER_SEARCH_H

#include "automaton.h"
#include "lookup.h"

/* A text's automata and rules, for as long as it is searched. */
typedef struct {
    const Rules *rules;
    const Automaton *own, *history;
} Place;

/* The longest match of a path in both. */
typedef struct {
    Match own, history;
} Context;

typedef struct {
    int32_t token;
    double share;
} Likely;

/* A node that may be proposed. */
typedef struct {
    double chance;
    int32_t order, parent, token;
} Found;

static Context after(const Place *in, Context c, int32_t token) {
    return (Context){advance(in->own, c.own, token), advance(in->history, c.history, token)};
}

static int history_first(Context c) {
    return c.history.matched > c.own.matched + 1 || (c.history.matched && !c.own.matched);
}

static double trusted(const Rules *rules, const double *trust, int32_t length, int32_t count) {
    if (length > rules->longest) length = rules->longest;
    if (count > rules->most) count = rules->most;
    return trust[length * (rules->most + 1) + count];
}

static int32_t add(Likely *likely, int32_t count, int32_t token, double share) {
    for (int32_t i = 0; i < count; i++)
        if (likely[i].token == token) {
            likely[i].share += share;
            return count;
        }
    likely[count] = (Likely){token, share};
    return count + 1;
}

/* Into `likely`, room for contexts × (fanout + 1); in the order they were found. Returns how many. */
static int32_t continuations(const Place *in, Context c, double least, Likely *likely) {
    const Rules *rules = in->rules;
    int32_t known = 0;
    double mass = 1.0;
    for (int32_t asked = 0; asked < rules->contexts; asked++) {
        int other = history_first(c);
        if (!other && !c.own.matched) break;
        const Automaton *a = other ? in->history : in->own;
        Match *m = other ? &c.history : &c.own;
        const State *here = a->states + m->state;
        int32_t length = m->matched;
        m->state = here->link;
        m->matched = a->states[here->link].length;
        if (here->first == NO_TOKEN) continue; /* the end of the text: nothing has followed yet */
        const double *trust = other ? rules->history_trust : rules->own_trust;
        int64_t seen = a->states[here->target].count, total = seen;
        double given;
        if (!here->others) {
            given = mass * trusted(rules, trust, length, (int32_t)seen);
            known = add(likely, known, here->first, given);
        } else {
            int32_t i = here->edge;
            for (int32_t n = 0; n < rules->fanout && i != NOWHERE; n++, i = a->edges[i].next)
                total += a->states[a->edges[i].target].count;
            if (here->others > rules->fanout && here->count > total) total = here->count;
            given = mass * trusted(rules, trust, length, (int32_t)(total / (here->others + 1)));
            double unit = given / (double)total;
            known = add(likely, known, here->first, unit * (double)seen);
            i = here->edge;
            for (int32_t n = 0; n < rules->fanout && i != NOWHERE; n++, i = a->edges[i].next)
                known = add(likely, known, a->edges[i].token, unit * a->states[a->edges[i].target].count);
        }
        mass -= given;
        if (mass < least) break;
    }
    return known;
}

/* Of equals the first. */
static int32_t likeliest(const Likely *likely, int32_t count) {
    int32_t best = 0;
    for (int32_t i = 1; i < count; i++)
        if (likely[i].share > likely[best].share) best = i;
    return best;
}

static int before(Found a, Found b) { return a.chance > b.chance || (a.chance == b.chance && a.order < b.order); }

static void push(Found *heap, int32_t count, Found new) {
    int32_t at = count;
    for (; at && before(new, heap[(at - 1) / 2]); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = new;
}

static Found pop(Found *heap, int32_t count) {
    Found best = heap[0], last = heap[--count];
    int32_t at = 0;
    for (int32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], last)) break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return best;
}

/* What a search needs beside the automata. */
typedef struct {
    Context *contexts; /* of node i at i + 1, of the root at 0; the same for depths */
    int32_t *depths;
    Likely *likely;
    Found *heap;
} Scratch;

/* The most probable set of continuations within the budget; returns its nodes. */
static int32_t tree(const Place *in, const Ask *ask, Context root, Scratch s, int32_t *tokens, int32_t *parents,
                    double *confidence) {
    double floor = ask->floor > in->rules->least ? ask->floor : in->rules->least, chance = 1.0;
    int32_t nodes = 0, waiting = 0, order = 0, node = -1;
    s.contexts[0] = root;
    s.depths[0] = 0;
    for (;;) {
        if (s.depths[node + 1] < ask->depth) {
            int32_t count = continuations(in, s.contexts[node + 1], floor / chance, s.likely);
            int32_t begin = ask->tree || !count ? 0 : likeliest(s.likely, count);
            int32_t end = ask->tree || !count ? count : begin + 1;
            for (int32_t i = begin; i < end; i++) {
                double value = chance * s.likely[i].share;
                if (value >= floor) push(s.heap, waiting++, (Found){value, order++, node, s.likely[i].token});
            }
        }
        if (!waiting) return nodes;
        Found best = pop(s.heap, waiting--);
        node = nodes++;
        chance = best.chance;
        tokens[node] = best.token;
        parents[node] = best.parent;
        confidence[node] = chance;
        if (nodes == ask->nodes) return nodes;
        s.contexts[node + 1] = after(in, s.contexts[best.parent + 1], best.token);
        s.depths[node + 1] = s.depths[best.parent + 1] + 1;
    }
}

/* What followed the longest match, token by token, in the text that has it; joins `nodes` that are there, `count` in
   all at most. */
static int32_t copied(const Place *in, Context c, double chance, int32_t nodes, int32_t count, int32_t *tokens,
                      double *confidence) {
    const Rules *rules = in->rules;
    int other = history_first(c);
    const Automaton *a = other ? in->history : in->own;
    const double *trust = other ? rules->history_trust : rules->own_trust;
    Match m = other ? c.history : c.own;
    while (m.matched && nodes < count) {
        const State *here = a->states + m.state;
        int32_t token = here->first, place = here->target;
        if (token == NO_TOKEN) { /* the end of the text: a shorter match goes on */
            m = (Match){here->link, a->states[here->link].length};
            continue;
        }
        int64_t seen = a->states[place].count, total = seen;
        int32_t i = here->edge;
        for (int32_t n = 0; n < rules->fanout && i != NOWHERE; n++, i = a->edges[i].next) {
            int32_t there = a->edges[i].target, times = a->states[there].count;
            total += times;
            if (times > seen) {
                token = a->edges[i].token;
                place = there;
                seen = times;
            }
        }
        chance *= trusted(rules, trust, m.matched, (int32_t)seen) * (double)seen / (double)(total > 1 ? total : 1);
        if (chance < rules->least) break;
        tokens[nodes] = token;
        confidence[nodes++] = chance;
        m = (Match){place, m.matched + 1};
    }
    return nodes;
}

/* The likeliest path, of which the first few tokens are weighed; returns its length, at most `count`. */
static int32_t path(const Place *in, Context c, Likely *likely, int32_t count, int32_t *tokens, double *confidence) {
    const Rules *rules = in->rules;
    double chance = 1.0;
    int32_t nodes = 0;
    while (nodes < rules->weighed && nodes < count) {
        int32_t known = continuations(in, c, rules->least / chance, likely);
        Likely best = known ? likely[likeliest(likely, known)] : (Likely){NO_TOKEN, 0.0};
        if (chance * best.share < rules->least) return nodes;
        chance *= best.share;
        tokens[nodes] = best.token;
        confidence[nodes++] = chance;
        c = after(in, c, best.token);
    }
    return copied(in, c, chance, nodes, count, tokens, confidence);
}

#endif
