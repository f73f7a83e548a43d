/* What Python calls: texts that grow, histories of finished ones, and what may follow. */
#include "lookup.h"
#include "search.h"

enum { REMATCH = 64 }; /* tokens matched anew against a history that has changed */

/* A running request: the automaton of its text, its newest tokens, and its place in the shared history. */
struct Text {
    Rolling own;
    const Rolling *history;
    int32_t epoch;
    Match match;
    int32_t newest[REMATCH], newest_count;
};

static int begin(Rolling *rolling, int32_t limit) {
    *rolling = (Rolling){new_automaton(), NULL, limit, 0, 0};
    return rolling->live != NULL;
}

static void end(Rolling *rolling) {
    free_automaton(rolling->live);
    free_automaton(rolling->next);
}

/* NULL where no memory is left; the same below. */
Rolling *outrider_history(int32_t limit) {
    Rolling *history = malloc(sizeof *history);
    if (history && !begin(history, limit)) {
        free(history);
        return NULL;
    }
    return history;
}

void outrider_forget_history(Rolling *history) {
    end(history);
    free(history);
}

/* Take in a text that is complete; returns the tokens that can be found now, or -1 where no memory is left. */
int32_t outrider_learn(Rolling *history, const int32_t *tokens, int32_t count) {
    history->live->last = ROOT_STATE;
    if (history->next) history->next->last = ROOT_STATE;
    extend_rolling(history, tokens, count);
    return history->failed ? -1 : history->live->size;
}

Text *outrider_text(int32_t limit) {
    Text *text = calloc(1, sizeof *text);
    if (text && !begin(&text->own, limit)) {
        free(text);
        return NULL;
    }
    return text;
}

void outrider_forget_text(Text *text) {
    end(&text->own);
    free(text);
}

static void note_newest(Text *text, const int32_t *fresh, int32_t count) {
    if (!count) return;
    int32_t taken = count < REMATCH ? count : REMATCH, kept = REMATCH - taken;
    if (kept > text->newest_count) kept = text->newest_count;
    memmove(text->newest, text->newest + text->newest_count - kept, (size_t)kept * sizeof *fresh);
    memcpy(text->newest + kept, fresh + count - taken, (size_t)taken * sizeof *fresh);
    text->newest_count = kept + taken;
}

static Place update(const Rules *rules, Text *text, const Rolling *history, const int32_t *fresh, int32_t count) {
    const Automaton *known = history->live;
    extend_rolling(&text->own, fresh, count);
    note_newest(text, fresh, count);
    if (text->history != history || text->epoch != history->epoch) {
        text->history = history;
        text->epoch = history->epoch;
        text->match = (Match){ROOT_STATE, 0};
        fresh = text->newest;
        count = text->newest_count;
    } else {
        text->match = settle(known, text->match);
    }
    for (int32_t i = 0; i < count; i++) text->match = advance(known, text->match, fresh[i]);
    return (Place){rules, text->own.live, known};
}

static Context context(const Text *text) {
    const Automaton *own = text->own.live;
    int32_t state = own->states[own->last].link;
    if (state < 0) state = ROOT_STATE;
    return (Context){{state, own->states[state].length}, text->match};
}

/* Drafts for the first `count` requests; `fresh` has their new tokens one behind the other. Returns the nodes of all
   drafts together, or -1 where no memory is left. */
int32_t outrider_propose(const Rules *rules, const Room *room, int32_t count, const int32_t *fresh) {
    int32_t most = 0, each = rules->contexts * (rules->fanout + 1), found = 0;
    for (int32_t i = 0; i < count; i++)
        if (room->asks[i].nodes > most) most = room->asks[i].nodes;
    size_t nodes = (size_t)most + 1;
    Scratch s = {malloc(nodes * sizeof *s.contexts), malloc(nodes * sizeof *s.depths),
                 malloc((size_t)each * sizeof *s.likely), malloc(nodes * (size_t)each * sizeof *s.heap)};
    int fits = s.contexts && s.depths && s.likely && s.heap;
    for (int32_t i = 0; i < count && fits; i++) {
        const Ask *ask = room->asks + i;
        Place in = update(rules, ask->text, ask->history, fresh, ask->fresh);
        fits = !ask->text->own.failed;
        room->sizes[i] = tree(&in, ask, context(ask->text), s, room->tokens + found, room->parents + found,
                              room->confidence + found);
        fresh += ask->fresh;
        found += room->sizes[i];
    }
    free(s.contexts);
    free(s.depths);
    free(s.likely);
    free(s.heap);
    return fits ? found : -1;
}

/* The likeliest path for the first request, of at most its nodes; the same. */
int32_t outrider_continue(const Rules *rules, const Room *room, const int32_t *fresh) {
    Likely *likely = malloc((size_t)(rules->contexts * (rules->fanout + 1)) * sizeof *likely);
    if (!likely) return -1;
    const Ask *ask = room->asks;
    Place in = update(rules, ask->text, ask->history, fresh, ask->fresh);
    int32_t found = path(&in, context(ask->text), likely, ask->nodes, room->tokens, room->confidence);
    free(likely);
    return ask->text->own.failed ? -1 : found;
}

/* What a library tells of itself before it is used: see compiled.py. */
typedef struct {
    const char *name; /* NULL: the end */
    int64_t bytes;
} Size;
#define SIZE(TYPE) {#TYPE, (int64_t)sizeof(TYPE)}

const Size *outrider_sizes(void) {
    static const Size sizes[] = {SIZE(Rules), SIZE(Ask), SIZE(Room), {0, 0}};
    return sizes;
}

#ifndef OUTRIDER_BUILD
#define OUTRIDER_BUILD "unknown" /* compiled by hand */
#endif
const char *outrider_build(void) { return OUTRIDER_BUILD; }
