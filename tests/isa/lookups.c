/* The compiled lookup by itself, for the sanitizers: requests that come, grow, are asked for and go, over histories that
   are dropped on the way. What it finds is held against the reference by tests/unit/test_native_lookup.py; here, against
   what must hold of any draft, and the longest match against a search of the text. */
#include <stdio.h>

#include "lookup.c"

enum { CONTEXTS = 4, FANOUT = 24, LONGEST = 64, MOST = 8, REQUESTS = 5, TEXT = 3000, NODES = 40 };

static uint32_t state = 1;

static int32_t draw(int32_t below) {
    state = state * 1664525u + 1013904223u;
    return (int32_t)((state >> 8) % (uint32_t)below);
}

static void require(int holds, const char *what) {
    if (holds) return;
    printf("lookups: %s\n", what);
    exit(1);
}

typedef struct {
    Text *text;
    int32_t *tokens; /* [TEXT], on the heap: what lies beyond is watched */
    int32_t count, given;
} Request;

/* The most tokens that end the newest `size` of the text and stand elsewhere in them, too. */
static int32_t longest_repeat(const Request *r, int32_t size) {
    const int32_t *text = r->tokens + r->given - size;
    int32_t best = 0;
    for (int32_t end = 1; end < size; end++) {
        int32_t n = 0;
        while (n < end && text[end - 1 - n] == text[size - 1 - n]) n++;
        if (n > best) best = n;
    }
    return best;
}

static void check(const Room *room, const Ask *ask, int32_t start, int32_t size) {
    require(size <= ask->nodes, "more nodes than were asked for");
    for (int32_t i = 0; i < size; i++) {
        int32_t parent = room->parents[start + i], depth = 1;
        double above = parent < 0 ? 1.0 : room->confidence[start + parent], claim = room->confidence[start + i];
        require(parent >= -1 && parent < i, "a node before its parent");
        require(claim >= ask->floor && claim <= above, "a claim beyond its parent's, or below the floor");
        for (; parent >= 0; parent = room->parents[start + parent]) depth++;
        require(depth <= ask->depth, "a node too deep");
        require(ask->tree || room->parents[start + i] == i - 1, "a branch where there may be none");
    }
}

static void begin_request(Request *r, int32_t limit, int32_t alphabet) {
    *r = (Request){outrider_text(limit), malloc(TEXT * sizeof(int32_t)), 0, 0};
    require(r->text && r->tokens, "no memory");
    for (int32_t n = draw(alphabet > 9 ? 2000 : 40); n >= 0; n--) r->tokens[r->count++] = draw(alphabet);
}

static void run(int32_t limit, int32_t alphabet, int32_t steps) {
    double *own = malloc((LONGEST + 1) * (MOST + 1) * sizeof *own), *other = malloc((LONGEST + 1) * (MOST + 1) * sizeof *other);
    for (int32_t i = 0; i < (LONGEST + 1) * (MOST + 1); i++) {
        own[i] = i / (i + 20.0);
        other[i] = i / (i + 60.0);
    }
    Rules rules = {own, other, 1e-3, LONGEST, MOST, CONTEXTS, FANOUT, 2};
    Request requests[REQUESTS];
    Rolling *histories[2] = {outrider_history(limit), outrider_history(limit)};
    for (int32_t i = 0; i < REQUESTS; i++) begin_request(requests + i, limit, alphabet);
    for (int32_t step = 0; step < steps; step++) {
        int32_t nodes = 0, fresh_count = 0;
        Room room = {malloc(REQUESTS * sizeof(Ask)), malloc(REQUESTS * sizeof(int32_t)), NULL, NULL, NULL};
        int32_t *fresh = malloc(REQUESTS * TEXT * sizeof *fresh);
        for (int32_t i = 0; i < REQUESTS; i++) {
            Request *r = requests + i;
            int32_t new = r->count - r->given, wanted = 1 + draw(NODES);
            room.asks[i] = (Ask){r->text, histories[i & 1], draw(2) ? 0.0 : 0.05, new, wanted, 1 + draw(20), draw(3) > 0};
            memcpy(fresh + fresh_count, r->tokens + r->given, (size_t)new * sizeof *fresh);
            fresh_count += new;
            nodes += wanted;
            r->given = r->count;
        }
        room.tokens = malloc((size_t)nodes * sizeof(int32_t));
        room.parents = malloc((size_t)nodes * sizeof(int32_t));
        room.confidence = malloc((size_t)nodes * sizeof(double));
        int32_t found = outrider_propose(&rules, &room, REQUESTS, fresh), start = 0;
        for (int32_t i = 0; i < REQUESTS; i++) {
            check(&room, room.asks + i, start, room.sizes[i]);
            start += room.sizes[i];
            const Automaton *a = requests[i].text->own.live;
            int32_t size = a->size, link = a->states[a->last].link;
            require((link < 0 ? 0 : a->states[link].length) == longest_repeat(requests + i, size), "another longest match");
        }
        require(start == found, "another number of nodes in all");
        int32_t chosen = draw(REQUESTS);
        Request *r = requests + chosen;
        room.asks[0] = (Ask){r->text, histories[chosen & 1], 0.0, 0, room.asks[chosen].nodes, 0, 0};
        require(outrider_continue(&rules, &room, fresh) <= room.asks[0].nodes, "a path longer than was asked for");
        for (int32_t n = draw(8); n > 0 && r->count < TEXT; n--) r->tokens[r->count++] = draw(alphabet);
        if (draw(20) == 0 || r->count == TEXT) {
            require(outrider_learn(histories[chosen & 1], r->tokens, r->count) >= 0, "no memory");
            outrider_forget_text(r->text);
            free(r->tokens);
            begin_request(r, limit, alphabet);
        }
        free(room.asks);
        free(room.sizes);
        free(room.tokens);
        free(room.parents);
        free(room.confidence);
        free(fresh);
    }
    for (int32_t i = 0; i < REQUESTS; i++) {
        outrider_forget_text(requests[i].text);
        free(requests[i].tokens);
    }
    outrider_forget_history(histories[0]);
    outrider_forget_history(histories[1]);
    free(own);
    free(other);
}

int main(void) {
    run(2, 2, 300);
    run(30, 3, 600);
    run(4000, 1, 100);
    run(4000, 4, 300);
    run(65536, 200, 100);
    printf("lookups: sound\n");
    return 0;
}
