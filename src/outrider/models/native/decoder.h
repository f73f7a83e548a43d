/* The shapes both sides agree on: mirrored field by field by ctypes structures in library.py. All memory is Python's. */
#ifndef OUTRIDER_DECODER_H
#define OUTRIDER_DECODER_H

#include <stdint.h>

#define ROW_TILE 16
#define TOGETHER 24    /* queries that attention takes at once, at most */
#define PANEL 16       /* output columns stored together */
#define PANEL_PAIR 32  /* output columns computed together */
#define ALONE_ROWS 8   /* see gemm_int8.h */
#define MOST_ROWS 128  /* of a pass */
#define MOST_EXPERTS 512 /* of a layer */
#define MOST_USED 16     /* of those, by a row */

typedef struct {
    int32_t layers, hidden, heads, kv_heads, head_dim;
    int32_t capacity;     /* positions per slot, a multiple of 32 */
    int32_t activation;   /* 0 silu, 1 gelu (tanh) */
    int32_t bf16;         /* cache, matrix inputs and weights: 1 bf16, 0 fp32 */
    int32_t integers;     /* matrices are int8 instead and their inputs fp32, multiplied in int8: see gemm_int8.h */
    int32_t threads;
    int32_t kernels;      /* which instructions to use, one that outrider_has() */
    float norm_eps, attention_scale, embed_scale;
    int32_t qk_norm_wide; /* query and key norms are over all heads together */
    float residual_scale, logit_scale, logit_cap, attention_cap; /* caps 0: none */
} Shape;

enum {
    KERNELS_BASE, /* what every CPU of the kind has: NEON on aarch64 */
    KERNELS_AVX2,
    KERNELS_AVXVNNI,
    KERNELS_AVX512,
    KERNELS_VNNI,
    KERNELS_AMX,
    KERNELS_DOTPROD,
    KERNELS_I8MM, /* and dot products */
    KERNELS_BF16, /* and both */
    KERNELS_COUNT
};

/* What finds the largest results of a product from fewer bytes: see gemm_screen.h. */
typedef struct {
    const void *codes;     /* [columns, depth] in 4 bits, packed */
    const float *scales;   /* [columns] */
    const int8_t *levels;  /* [16]: what a code stands for */
    const float *stretch, *mean; /* [depth]: input j is multiplied by stretch[j]; mean[j] is in every column */
    float *largest;        /* workspace [rows, columns / PANEL_PAIR] */
    int32_t columns;       /* without the padding */
} Screen;

/* What weights of a file are stored as, by llama.cpp's names: see blocks.h. */
enum {
    STORED_F32,
    STORED_F16,
    STORED_BF16,
    STORED_Q8_0,
    STORED_Q4_0,
    STORED_Q4_1,
    STORED_Q5_0,
    STORED_Q5_1,
    STORED_Q4_K,
    STORED_Q5_K,
    STORED_Q6_K,
};

/* Some columns of a matrix, stored alike: see stored.h. */
typedef struct {
    const void *data;
    int32_t kind;
    int32_t panels, first, step; /* panel p is panel first + p * step of the matrix */
} Strip;

/* A matrix [columns out, depth in], packed: see gemm.h, or gemm_int8.h where the model multiplies integers. */
typedef struct {
    const void *data;
    const uint16_t *scales; /* bf16, of int8 columns; NULL: stored in the model's precision */
    const float *bias;    /* or NULL */
    int32_t columns;      /* padded to PANEL_PAIR */
    int32_t depth;        /* padded to 32, or 64 to multiply integers */
    int32_t inputs;       /* depth without the padding */
    const Screen *screen; /* or NULL; else data and scales are not packed: [columns, depth] and [columns, blocks] */
    const Strip *strips;  /* or NULL; else the weights are there, and not in data */
    int32_t strip_count;
} Matrix;

/* One of the MLPs among which a router chooses. */
typedef struct {
    Matrix gate_up, down;
} Expert;

typedef struct {
    Matrix qkv, o, gate_up, down; /* with experts, the last two are the first one's, and all have its shape */
    const float *attention_norm, *mlp_norm;           /* or NULL: inputs as they are */
    const float *attention_norm_bias, *mlp_norm_bias; /* or NULL; else the norms are LayerNorm */
    const float *q_norm, *k_norm, *attention_out_norm, *mlp_out_norm; /* or NULL */
    const float *cosines, *sines;                                    /* [capacity, head_dim/2] */
    void *keys, *values; /* [slots, kv_heads], each as cache.h says */
    int32_t window; /* 0: everything */
    Matrix router;         /* [experts, hidden] in fp32, as deep as gate_up */
    const Expert *experts; /* or NULL: one MLP and no router */
} Layer;

typedef struct Model Model;

/* How a drafting head begins, instead of with an embedding alone: layer 0 takes [norm(embedding), norm(state)] where a
 * row's state is given, or fused from a target's features by `fc`. The residual stream starts as the state. */
typedef struct {
    const Model *target; /* whose embedding is used */
    Matrix fc;           /* [hidden, features] */
    const float *state_norm;
    void *features;         /* workspace [rows, depth of fc] */
    float *embedded;        /* workspace [rows, hidden]: normalised embeddings */
    int32_t normed_residual; /* the stream starts as the normalised state */
} Fusion;

/* Which experts rows go to, and what those give: see experts.h. */
typedef struct {
    int32_t count, used; /* experts of a layer, and of a row */
    int32_t normalised;  /* a row's shares add up to 1 */
    float *scores;   /* workspace [rows, columns of router] */
    int32_t *chosen; /* workspace [rows, used], rising */
    float *shares;   /* workspace [rows, used] */
    float *outputs;  /* workspace [rows * used, columns of down] */
    float *gathered; /* workspace [threads, rows, depth of router]: rows of inputs */
} Routing;

struct Model {
    Shape shape;
    const Layer *layers;
    const Fusion *fusion; /* of a drafting head, else NULL */
    const Routing *routing; /* of a model with experts, else NULL */
    const void *embedding; /* [vocab, hidden], as stored; NULL: the rows of head */
    const uint16_t *embedding_scales; /* bf16 [vocab, blocks] of an int8 embedding, or NULL */
    int32_t stored_embedding; /* 1 + what the rows of embedding are in a file; 0: what the model's matrices are */
    const float *norm, *norm_bias;
    Matrix head;
    /* workspace of as many rows as a pass may have, a multiple of 32; residual and normed at least ALONE_ROWS a thread */
    float *residual;  /* [rows, hidden] */
    void *normed;     /* [rows, depth of qkv]: input of qkv, gate_up and head */
    float *qkv;       /* [rows, columns of qkv] */
    void *attended;   /* [rows, depth of o] */
    float *update;    /* [rows, columns of o] */
    void *gated;      /* [rows, or rows * experts used, depth of down] */
    float *scores;    /* [threads, scores_size]: TOGETHER rows of capacity + PANEL, and room for the keys of a head */
    int8_t *scratch;  /* [threads, scratch_size]: rows of inputs as int8 */
    int64_t scores_size, scratch_size;
    const int32_t *taps; /* [tap_count]: tap t keeps the residual stream after taps[t] layers */
    int32_t tap_count;
};

#define MOST_RANKED 16

/* A column of logits: x = logit / temperature, and its score: x alone, or with noise. */
typedef struct {
    float score, x;
    int32_t column;
} Ranked;

/* What one thread found in its share of a row's columns: largest x, sum of e^(x - largest), and the best, falling. */
typedef struct {
    float largest, total;
    Ranked likely[MOST_RANKED], drawn[MOST_RANKED];
} Partial;

/* The noise to draw a row's followers with, see sampling/noise.py. */
typedef struct {
    float inverse_temperature;
    int32_t random; /* 0: what is drawn is what is likely */
    uint32_t low, high;
} Noise;

/* Asks for the `count` best tokens of every wanted row, with their probabilities: the likeliest, and those drawn. */
typedef struct {
    int32_t count, columns; /* of the logits, padding not counted */
    const int32_t *ids;     /* [columns]: the token each stands for */
    const Noise *noise;     /* [wanted] */
    Partial *partials;      /* workspace [threads, wanted] */
    int32_t *tokens;        /* [wanted, 2, count], -1 where there are fewer */
    float *shares;          /* [wanted, 2, count] */
} Ranking;

/* The rows of one pass. Row r sees positions 0..base-1 of its slot's committed prefix, then paths[starts[r]..starts[r+1]),
 * the cache indices of its pending ancestors in order of position, its own last. */
typedef struct {
    int32_t rows, wanted;
    const int32_t *tokens, *slots, *bases, *starts, *paths;
    const int32_t *wanted_rows;
    float *logits; /* [wanted padded to ROW_TILE, columns of head] */
    float *tapped; /* [rows, tap_count, hidden], where there are taps */
    const float *features, *states; /* of a head, one of the two: [rows, features], [rows, hidden] */
    const Ranking *ranking; /* or NULL */
} Pass;

/* A tree that a head is to draft by itself: `WantedTree` of core/model.py. */
typedef struct {
    double floor;        /* how promising a node must be */
    double expand_node;  /* how promising to be followed up */
    double expand_level; /* how promising those followed up must be together */
    int32_t nodes, depth, branching, width; /* the most: in all, levels, children of a node, followed up of a level */
} Wanted;

/* One that was looked at. */
typedef struct {
    double confidence;
    int32_t token, parent; /* -1: where the tree begins */
    int32_t row, place;    /* where it was run: of the tree's rows, and in its pass */
} Node;

/* Trees that a head drafts by itself: see drafts.h. */
typedef struct {
    const Pass *first;    /* ranks followers of each wanted row, where the trees begin; says nothing of noise */
    const Wanted *wanted; /* [trees]: all of them follow up MOST_ROWS nodes of a level at most */
    const Noise *noise;   /* [levels, trees], as many levels as the deepest has */
    int32_t *sizes;       /* [trees]: nodes of each */
    int32_t *tokens, *parents; /* theirs, tree by tree, with room for as many as each may have */
    double *confidence;
    Node *looked_at;      /* workspace: branching * (1 + (depth - 1) * width) of each tree */
    int32_t *paths;       /* workspace [width of all trees, levels] */
    float *states;        /* workspace [2, MOST_ROWS, hidden]: what a level begins with, and what it ends with */
} Drafts;

/* A matrix product by itself: y [rows, columns] = x · W^T, x as the model's matrices take it. */
typedef struct {
    const Matrix *matrix;
    const void *x;
    float *y;
    int32_t rows;
} Product;

/* The share of `thread` of `threads` of a pass or of a product; each instruction set has its own, see isa_*.c. */
typedef void (*PassFunction)(const Model *m, const Pass *pass, int thread, int threads);
typedef void (*ProductFunction)(const Model *m, const Product *product, int thread, int threads);
#define DECLARE(ISA)                                                         \
    void pass_##ISA(const Model *m, const Pass *pass, int thread, int threads); \
    void product_##ISA(const Model *m, const Product *p, int thread, int threads);
DECLARE(base)
DECLARE(avx2)
DECLARE(avxvnni)
DECLARE(avx512)
DECLARE(vnni) /* and AMX */
DECLARE(dotprod)
DECLARE(i8mm)
DECLARE(bf16)

#endif
