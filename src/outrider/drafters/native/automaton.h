/* The suffix automaton of automaton.py, state by state: see there for what it is and why. */
#ifndef OUTRIDER_AUTOMATON_H
#define OUTRIDER_AUTOMATON_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { NOWHERE = -1, NO_TOKEN = -1, ROOT_STATE = 0, WALK = 32 };

typedef struct {
    int32_t length, link, count;
    int32_t first, target;    /* the first transition; NO_TOKEN: none */
    int32_t edge, last_edge;  /* the others, in the order they came; NOWHERE: none */
    int32_t others;           /* how many */
} State;

typedef struct {
    int32_t state, token, target, next;
} Edge;

/* `slots` finds an edge by its state and token: open addressing, at most half full, 1 + its number or 0. */
typedef struct {
    State *states;
    Edge *edges;
    int32_t *slots;
    int32_t count, room, edge_count, edge_room, slot_count; /* the last a power of two, or 0 */
    int32_t last, size;
    int32_t failed; /* no memory was left: what it finds is no more than valid */
} Automaton;

/* Room for one more of `size` bytes each in an array that doubles. */
static void *grown(void *array, int32_t *room, size_t size) {
    if (*room > INT32_MAX / 2) return NULL;
    int32_t wanted = *room ? 2 * *room : 32;
    void *larger = realloc(array, (size_t)wanted * size);
    if (larger) *room = wanted;
    return larger;
}

static int32_t *slot_of(const Automaton *a, int32_t state, int32_t token) {
    uint32_t mask = (uint32_t)a->slot_count - 1;
    uint64_t key = ((uint64_t)(uint32_t)state << 32 | (uint32_t)token) * 0x9E3779B97F4A7C15u;
    for (uint32_t at = (uint32_t)(key >> 32);; at++) {
        int32_t *slot = a->slots + (at & mask);
        if (!*slot) return slot;
        const Edge *edge = a->edges + *slot - 1;
        if (edge->token == token && edge->state == state) return slot;
    }
}

/* Among the transitions beside the first; NULL where there is none. */
static Edge *edge_of(const Automaton *a, int32_t state, int32_t token) {
    if (!a->states[state].others) return NULL;
    int32_t found = *slot_of(a, state, token);
    return found ? a->edges + found - 1 : NULL;
}

/* Where `token` leads from `state`, or NOWHERE. */
static int32_t step(const Automaton *a, int32_t state, int32_t token) {
    if (a->states[state].first == token) return a->states[state].target;
    const Edge *edge = edge_of(a, state, token);
    return edge ? edge->target : NOWHERE;
}

static int more_slots(Automaton *a) {
    if (a->slot_count > INT32_MAX / 2) return 0;
    int32_t count = a->slot_count ? 2 * a->slot_count : 64;
    int32_t *slots = calloc((size_t)count, sizeof *slots);
    if (!slots) return 0;
    free(a->slots);
    a->slots = slots;
    a->slot_count = count;
    for (int32_t i = 0; i < a->edge_count; i++) *slot_of(a, a->edges[i].state, a->edges[i].token) = i + 1;
    return 1;
}

/* One more transition of a state that has a first. */
static void add_edge(Automaton *a, int32_t state, int32_t token, int32_t target) {
    if (a->edge_count == a->edge_room) {
        Edge *edges = grown(a->edges, &a->edge_room, sizeof *edges);
        if (!edges) { a->failed = 1; return; }
        a->edges = edges;
    }
    if (a->edge_count >= a->slot_count / 2 && !more_slots(a)) { a->failed = 1; return; }
    int32_t new = a->edge_count++;
    a->edges[new] = (Edge){state, token, target, NOWHERE};
    *slot_of(a, state, token) = new + 1;
    State *s = a->states + state;
    if (s->others++) a->edges[s->last_edge].next = new;
    else s->edge = new;
    s->last_edge = new;
}

/* A state without transitions; NOWHERE where no memory is left. */
static int32_t add_state(Automaton *a, int32_t length, int32_t link, int32_t count) {
    if (a->count == a->room) {
        State *states = grown(a->states, &a->room, sizeof *states);
        if (!states) { a->failed = 1; return NOWHERE; }
        a->states = states;
    }
    a->states[a->count] = (State){length, link, count, NO_TOKEN, ROOT_STATE, NOWHERE, NOWHERE, 0};
    return a->count++;
}

/* Split the strings of q up to length[p] + 1 off into a state of their own, and redirect p and its suffixes. */
static int32_t split(Automaton *a, int32_t p, int32_t token, int32_t q) {
    int32_t clone = add_state(a, a->states[p].length + 1, a->states[q].link, a->states[q].count);
    if (clone == NOWHERE) return q;
    State *s = a->states;
    s[q].link = clone;
    s[clone].first = s[q].first;
    s[clone].target = s[q].target;
    for (int32_t i = s[q].edge; i != NOWHERE; i = a->edges[i].next)
        add_edge(a, clone, a->edges[i].token, a->edges[i].target);
    for (; p >= 0; p = s[p].link) {
        if (s[p].first == token) {
            if (s[p].target != q) break;
            s[p].target = clone;
        } else {
            Edge *edge = edge_of(a, p, token);
            if (!edge || edge->target != q) break;
            edge->target = clone;
        }
    }
    return clone;
}

/* A state of its own for the text that ends with `token`. */
static int32_t append(Automaton *a, int32_t token) {
    int32_t p = a->last, q = NOWHERE, new = add_state(a, a->states[p].length + 1, ROOT_STATE, 0);
    if (new == NOWHERE) return p;
    for (; p >= 0; p = a->states[p].link) {
        State *s = a->states + p;
        if (s->first == NO_TOKEN) {
            s->first = token;
            s->target = new;
            continue;
        }
        if ((q = step(a, p, token)) != NOWHERE) break;
        add_edge(a, p, token, new);
    }
    if (p >= 0) {
        int32_t link = a->states[q].length == a->states[p].length + 1 ? q : split(a, p, token, q);
        a->states[new].link = link;
    }
    return new;
}

static void extend(Automaton *a, const int32_t *tokens, int32_t count) {
    for (int32_t i = 0; i < count && !a->failed; i++) {
        int32_t p = a->last, q = step(a, p, tokens[i]);
        if (q == NOWHERE)
            a->last = append(a, tokens[i]);
        else /* only after a restart: this text begins like an earlier one */
            a->last = a->states[q].length == a->states[p].length + 1 ? q : split(a, p, tokens[i], q);
        p = a->last;
        for (int32_t steps = WALK; p > 0 && steps; steps--, p = a->states[p].link) a->states[p].count++;
        a->size++;
    }
}

/* The longest match of a text in an automaton. */
typedef struct {
    int32_t state, matched;
} Match;

/* Follow `token` from the longest suffix of the match that allows it. */
static Match advance(const Automaton *a, Match m, int32_t token) {
    for (int32_t state = m.state, matched = m.matched;;) {
        int32_t next = step(a, state, token);
        if (next != NOWHERE) return (Match){next, matched + 1};
        state = a->states[state].link;
        if (state < 0) return (Match){ROOT_STATE, 0};
        matched = a->states[state].length;
    }
}

/* Where the match is held now: extensions split states, moving their shorter strings to a clone. */
static Match settle(const Automaton *a, Match m) {
    while (m.state > 0 && m.matched <= a->states[a->states[m.state].link].length) m.state = a->states[m.state].link;
    return m;
}

static Automaton *new_automaton(void) {
    Automaton *a = calloc(1, sizeof *a);
    if (a && add_state(a, 0, NOWHERE, 0) == NOWHERE) {
        free(a);
        return NULL;
    }
    return a;
}

static void free_automaton(Automaton *a) {
    if (!a) return;
    free(a->states);
    free(a->edges);
    free(a->slots);
    free(a);
}

/* As RollingAutomaton: at least the newest half, and at most all, of the last `limit` tokens. */
struct Rolling {
    Automaton *live, *next;
    int32_t limit, epoch;
    int32_t failed;
};

static void extend_rolling(Rolling *r, const int32_t *tokens, int32_t count) {
    int32_t half = r->limit / 2;
    while (count > 0 && !r->failed) {
        int32_t room = (r->next ? r->limit : half) - r->live->size; /* up to the next boundary */
        int32_t part = count < room ? count : room;
        extend(r->live, tokens, part);
        if (r->next) extend(r->next, tokens, part);
        r->failed = r->live->failed || (r->next && r->next->failed);
        tokens += part;
        count -= part;
        if (r->live->size < (r->next ? r->limit : half)) continue;
        Automaton *fresh = new_automaton();
        if (!fresh) {
            r->failed = 1;
        } else if (r->next) {
            free_automaton(r->live);
            r->live = r->next;
            r->next = fresh;
            r->epoch++;
        } else {
            r->next = fresh;
        }
    }
}

#endif
