/* Whole passes of a small random model with experts, on one instruction set: all rows in one pass, on several threads, must
 * have the bits they have one by one. Any numbers are weights, so they are made as they are packed. */
#include "decoder.h"

#include <stdio.h>
#include <string.h>

#include "numbers.h"

void outrider_forward(const Model *m, const Pass *pass);
int passes_agree(int kernels, int bf16, int integers);

enum { HIDDEN = 64, HEADS = 4, DIM = 16, KV = 2, MLP = 64, EXPERTS = 20, USED = 3, LAYERS = 2, TOKENS = 64, CAPACITY = 64 };
enum { ROWS = 24, MOST = MOST_ROWS * USED + 32 };

static Model model_of(int kernels, int bf16, int integers, int threads) {
    static Layer layers[LAYERS];
    static Routing routing;
    const int cache = KV * CAPACITY * 32;
    state = 7;
    for (int l = 0; l < LAYERS; l++) {
        Layer *layer = layers + l;
        Expert *experts = room(EXPERTS * sizeof *experts);
        memset(layer, 0, sizeof *layer);
        layer->qkv = matrix((HEADS + 2 * KV) * DIM, HIDDEN, bf16, integers);
        layer->o = matrix(HIDDEN, HEADS * DIM, bf16, integers);
        for (int e = 0; e < EXPERTS; e++)
            experts[e] = (Expert){matrix(2 * MLP, HIDDEN, bf16, integers), matrix(HIDDEN, MLP, bf16, integers)};
        layer->gate_up = experts->gate_up, layer->down = experts->down, layer->experts = experts;
        layer->router = matrix(32, HIDDEN, 0, 0);
        layer->attention_norm = numbers(HIDDEN, 0.5f, 1.0f);
        layer->mlp_norm = numbers(HIDDEN, 0.5f, 1.0f);
        layer->cosines = numbers(CAPACITY * DIM / 2, 1.0f, 0.0f);
        layer->sines = numbers(CAPACITY * DIM / 2, 1.0f, 0.0f);
        layer->keys = room((size_t)cache * 4);
        layer->values = room((size_t)cache * 4);
    }
    routing = (Routing){EXPERTS, USED, 1, room(MOST_ROWS * 32 * 4), room(MOST_ROWS * USED * 4), room(MOST_ROWS * USED * 4),
                        room((size_t)MOST * HIDDEN * 4), room((size_t)threads * MOST_ROWS * HIDDEN * 4)};
    Model m = {
        .shape = {.layers = LAYERS, .hidden = HIDDEN, .heads = HEADS, .kv_heads = KV, .head_dim = DIM, .capacity = CAPACITY,
                  .bf16 = bf16, .integers = integers, .threads = threads, .kernels = kernels, .norm_eps = 1e-5f,
                  .attention_scale = 0.25f, .embed_scale = 1.0f, .residual_scale = 1.0f, .logit_scale = 1.0f},
        .layers = layers,
        .routing = &routing,
        .norm = numbers(HIDDEN, 0.5f, 1.0f),
        .head = matrix(TOKENS, HIDDEN, bf16, integers),
        .residual = room(MOST_ROWS * HIDDEN * 4),
        .normed = room(MOST_ROWS * HIDDEN * 4),
        .qkv = room(MOST_ROWS * (HEADS + 2 * KV) * DIM * 4),
        .attended = room(MOST_ROWS * HEADS * DIM * 4),
        .update = room(MOST_ROWS * HIDDEN * 4),
        .gated = room((size_t)MOST * MLP * 4),
        .scores_size = (CAPACITY + PANEL) * TOGETHER + CAPACITY * 32,
        .scratch_size = MOST_ROWS * 2 * (HIDDEN + 16),
    };
    m.scores = room((size_t)threads * m.scores_size * 4);
    m.scratch = room((size_t)threads * m.scratch_size);
    return m;
}

/* The logits of a chain of ROWS tokens, so many in each pass. */
static void decode(const Model *m, int at_once, float *logits) {
    int32_t tokens[ROWS], zeros[ROWS] = {0}, bases[ROWS], starts[ROWS + 1], paths[ROWS * ROWS], wanted[ROWS];
    for (int start = 0; start < ROWS; start += at_once) {
        const int rows = ROWS - start < at_once ? ROWS - start : at_once;
        starts[0] = 0;
        for (int r = 0; r < rows; r++) {
            tokens[r] = (start + r) * 13 % TOKENS, bases[r] = start, wanted[r] = r;
            starts[r + 1] = starts[r] + r + 1;
            for (int i = 0; i <= r; i++) paths[starts[r] + i] = start + i;
        }
        const Pass pass = {.rows = rows, .wanted = rows, .tokens = tokens, .slots = zeros, .bases = bases, .starts = starts,
                           .paths = paths, .wanted_rows = wanted, .logits = logits + start * TOKENS};
        outrider_forward(m, &pass);
    }
}

int passes_agree(int kernels, int bf16, int integers) {
    static float alone[(ROWS + ROW_TILE) * TOKENS], together[(ROWS + ROW_TILE) * TOKENS];
    const int at_once[] = {7, ROWS};
    const Model one = model_of(kernels, bf16, integers, 1);
    decode(&one, 1, alone);
    for (size_t i = 0; i < sizeof at_once / sizeof *at_once; i++)
        for (int threads = 1; threads <= 3; threads += 2) {
            const Model several = model_of(kernels, bf16, integers, threads);
            decode(&several, at_once[i], together);
            for (int j = 0; j < ROWS * TOKENS; j++)
                if (memcmp(alone + j, together + j, 4) || alone[j] != alone[j]) {
                    printf("kernels %d: row %d in passes of %d, %s, is %.9g and alone %.9g\n", kernels, j / TOKENS,
                           at_once[i], integers ? "int8" : bf16 ? "bf16" : "fp32", together[j], alone[j]);
                    return 0;
                }
        }
    return 1;
}
