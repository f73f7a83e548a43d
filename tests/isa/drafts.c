/* Trees that a small random head drafts by itself, by budgets of all kinds, on one thread and on several: with others a tree
 * must be the one that it is alone, to the bit, and what every tree is. Everything is just as large as decoder.h says. */
#include "decoder.h"

#include <stdio.h>
#include <string.h>

#include "numbers.h"

void outrider_draft(const Model *m, const Drafts *drafts);
int drafts_agree(int kernels, int integers);

enum { HIDDEN = 64, HEADS = 4, DIM = 16, KV = 2, MLP = 64, FEATURES = 128, TOKENS = 64, COLUMNS = 61, CAPACITY = 256 };
enum { TREES = 3, BEHIND = 5, MOST_NODES = 40, MOST_LEVELS = 6, ROUNDS = 30, DEEPEST = 2 * HIDDEN };

typedef struct {
    int size;
    int32_t tokens[MOST_NODES], parents[MOST_NODES];
    double confidence[MOST_NODES];
} Drafted;

static Model head_of(int kernels, int integers, int threads) {
    static Layer layer;
    static Fusion fusion;
    static Model target;
    static const int32_t taps[] = {1};
    state = 11;
    target = (Model){.shape = {.hidden = HIDDEN, .embed_scale = 1.0f}, .embedding = numbers(TOKENS * HIDDEN, 1.0f, 0.0f)};
    fusion = (Fusion){&target, matrix(HIDDEN, FEATURES, 0, integers), numbers(HIDDEN, 0.5f, 1.0f),
                      room(MOST_ROWS * FEATURES * 4), room(MOST_ROWS * HIDDEN * 4), 0};
    layer = (Layer){
        .qkv = matrix((HEADS + 2 * KV) * DIM, 2 * HIDDEN, 0, integers), .o = matrix(HIDDEN, HEADS * DIM, 0, integers),
        .gate_up = matrix(2 * MLP, HIDDEN, 0, integers), .down = matrix(HIDDEN, MLP, 0, integers),
        .attention_norm = numbers(HIDDEN, 0.5f, 1.0f), .mlp_norm = numbers(HIDDEN, 0.5f, 1.0f),
        .cosines = numbers(CAPACITY * DIM / 2, 1.0f, 0.0f), .sines = numbers(CAPACITY * DIM / 2, 1.0f, 0.0f),
        .keys = room((size_t)TREES * KV * CAPACITY * 32 * 4), .values = room((size_t)TREES * KV * CAPACITY * 32 * 4),
    };
    Model m = {
        .shape = {.layers = 1, .hidden = HIDDEN, .heads = HEADS, .kv_heads = KV, .head_dim = DIM, .capacity = CAPACITY,
                  .integers = integers, .threads = threads, .kernels = kernels, .norm_eps = 1e-5f, .attention_scale = 0.25f,
                  .embed_scale = 1.0f, .residual_scale = 1.0f, .logit_scale = 1.0f},
        .layers = &layer,
        .fusion = &fusion,
        .norm = numbers(HIDDEN, 0.5f, 1.0f),
        .head = matrix(TOKENS, HIDDEN, 0, integers),
        .residual = room(MOST_ROWS * HIDDEN * 4),
        .normed = room(MOST_ROWS * DEEPEST * 4),
        .qkv = room(MOST_ROWS * (HEADS + 2 * KV) * DIM * 4),
        .attended = room(MOST_ROWS * HEADS * DIM * 4),
        .update = room(MOST_ROWS * HIDDEN * 4),
        .gated = room(MOST_ROWS * MLP * 4),
        .scores_size = (CAPACITY + PANEL) * TOGETHER + CAPACITY * 32,
        .scratch_size = MOST_ROWS * 2 * (DEEPEST + 16),
        .taps = taps,
        .tap_count = 1,
    };
    m.scores = room((size_t)threads * m.scores_size * 4);
    m.scratch = room((size_t)threads * m.scratch_size);
    return m;
}

/* So many trees, the first of them the `from`th: each behind BEHIND tokens of its own slot. */
static void draft(const Model *m, const Wanted *wanted, const Noise *noise, int from, int trees, Drafted *drafted) {
    enum { ROWS = TREES * BEHIND };
    int32_t tokens[ROWS], slots[ROWS], bases[ROWS] = {0}, starts[ROWS + 1] = {0}, paths[ROWS * BEHIND], wanted_rows[TREES];
    float *features = malloc(ROWS * FEATURES * 4), *tapped = malloc(ROWS * HIDDEN * 4);
    int nodes = 0, looked_at = 0, width = 0, levels = 0;
    for (int t = 0; t < trees; t++) {
        const Wanted *w = wanted + from + t;
        nodes += w->nodes, width += w->width, levels = w->depth > levels ? w->depth : levels;
        looked_at += w->branching * (1 + (w->depth - 1) * w->width);
        wanted_rows[t] = t * BEHIND + BEHIND - 1;
        for (int i = 0; i < BEHIND; i++) {
            const int row = t * BEHIND + i, number = (from + t) * BEHIND + i;
            tokens[row] = number * 13 % TOKENS, slots[row] = from + t, starts[row + 1] = starts[row] + i + 1;
            for (int j = 0; j <= i; j++) paths[starts[row] + j] = j;
            for (int j = 0; j < FEATURES; j++) features[row * FEATURES + j] = (float)((number * 37 + j * 11) % 64) / 32 - 1;
        }
    }
    int32_t ids[COLUMNS];
    for (int i = 0; i < COLUMNS; i++) ids[i] = i + i / 30;
    Noise *drawn = malloc((size_t)levels * trees * sizeof *drawn);
    for (int level = 0; level < levels; level++)
        for (int t = 0; t < trees; t++) drawn[level * trees + t] = noise[level * TREES + from + t];
    Ranking ranking = {.columns = COLUMNS, .ids = ids, .partials = malloc(m->shape.threads * MOST_ROWS * sizeof(Partial))};
    for (int t = 0; t < trees; t++)
        if (wanted[from + t].branching > ranking.count) ranking.count = wanted[from + t].branching;
    float *logits = room(MOST_ROWS * TOKENS * 4);
    const Pass first = {.rows = trees * BEHIND, .wanted = trees, .tokens = tokens, .slots = slots, .bases = bases,
                        .starts = starts, .paths = paths, .wanted_rows = wanted_rows, .logits = logits, .tapped = tapped,
                        .features = features, .ranking = &ranking};
    int32_t sizes[TREES];
    const Drafts drafts = {
        .first = &first, .wanted = wanted + from, .noise = drawn, .sizes = sizes, .tokens = malloc((size_t)nodes * 4),
        .parents = malloc((size_t)nodes * 4), .confidence = malloc((size_t)nodes * 8),
        .looked_at = malloc((size_t)looked_at * sizeof(Node)), .paths = malloc((size_t)width * levels * 4),
        .states = malloc((size_t)2 * MOST_ROWS * HIDDEN * 4),
    };
    outrider_draft(m, &drafts);
    for (int t = 0, at = 0; t < trees; at += wanted[from + t++].nodes) {
        drafted[t].size = sizes[t];
        memcpy(drafted[t].tokens, drafts.tokens + at, (size_t)sizes[t] * 4);
        memcpy(drafted[t].parents, drafts.parents + at, (size_t)sizes[t] * 4);
        memcpy(drafted[t].confidence, drafts.confidence + at, (size_t)sizes[t] * 8);
    }
    free(features), free(tapped), free(drawn), free(ranking.partials), free(logits), free(drafts.tokens);
    free(drafts.parents), free(drafts.confidence), free(drafts.looked_at), free(drafts.paths), free(drafts.states);
}

static int is_tree(const Drafted *d, const Wanted *wanted) {
    int depths[MOST_NODES];
    if (d->size > wanted->nodes) return 0;
    for (int i = 0; i < d->size; i++) {
        const int parent = d->parents[i];
        int siblings = 0;
        if (parent < -1 || parent >= i || d->tokens[i] < 0 || d->tokens[i] >= TOKENS) return 0;
        depths[i] = parent < 0 ? 1 : depths[parent] + 1;
        if (depths[i] > wanted->depth || d->confidence[i] < wanted->floor) return 0;
        if (!(d->confidence[i] > 0) || d->confidence[i] > (parent < 0 ? 1 : d->confidence[parent])) return 0;
        for (int j = 0; j < i; j++) {
            siblings += d->parents[j] == parent;
            if (d->parents[j] == parent && d->tokens[j] == d->tokens[i]) return 0;
        }
        if (siblings >= wanted->branching) return 0;
    }
    return 1;
}

static int same(const Drafted *a, const Drafted *b) {
    const size_t size = (size_t)a->size;
    return a->size == b->size && !memcmp(a->tokens, b->tokens, 4 * size) && !memcmp(a->parents, b->parents, 4 * size) &&
           !memcmp(a->confidence, b->confidence, 8 * size);
}

static int up_to(int most) { return 1 + (int)((uniform() + 1) / 2 * (float)most) % most; }

int drafts_agree(int kernels, int integers) {
    static Drafted alone[TREES], together[TREES];
    static const int threads[] = {1, 3};
    uint32_t chance = 5;
    int branches = 0;
    for (int round = 0; round < ROUNDS; round++) {
        Wanted wanted[TREES];
        Noise noise[MOST_LEVELS * TREES];
        state = chance;
        for (int t = 0; t < TREES; t++) {
            const int chain = up_to(4) == 1, nodes = up_to(MOST_NODES), depth = up_to(MOST_LEVELS), random = up_to(2) - 1;
            wanted[t] = (Wanted){
                .floor = 0.02 * (up_to(3) - 1), .expand_node = 0.02 * (up_to(3) - 1), .expand_level = 0.2 * (up_to(3) - 1),
                .nodes = nodes, .depth = depth < nodes ? depth : nodes, .branching = chain ? 1 : up_to(MOST_RANKED),
                .width = chain ? 1 : up_to(8),
            };
            for (int level = 0; level < MOST_LEVELS; level++)
                noise[level * TREES + t] = (Noise){random ? 1.3f : 1.0f, random, state + (uint32_t)level, state >> 3};
        }
        chance = state;
        for (int i = 0; i < 2; i++) {
            const Model m = head_of(kernels, integers, threads[i]);
            for (int t = 0; t < TREES; t++) draft(&m, wanted, noise, t, 1, alone + t);
            draft(&m, wanted, noise, 0, TREES, together);
            for (int t = 0; t < TREES; t++) {
                if (!is_tree(alone + t, wanted + t) || !same(alone + t, together + t)) {
                    printf("kernels %d: tree %d of round %d, %s, is not the one alone\n", kernels, t, round,
                           integers ? "int8" : "fp32");
                    return 0;
                }
                for (int node = 1; node < alone[t].size; node++) branches += alone[t].parents[node] < node - 1;
            }
        }
    }
    if (branches < 100) printf("kernels %d: %d branches are too few to tell\n", kernels, branches);
    return branches >= 100;
}
