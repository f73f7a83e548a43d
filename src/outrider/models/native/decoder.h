/* The shapes both sides agree on: mirrored field by field by ctypes structures in decoder.py. All memory is Python's. */
#ifndef OUTRIDER_DECODER_H
#define OUTRIDER_DECODER_H

#include <stdint.h>

#define ROW_TILE 16
#define PANEL 16       /* output columns stored together */
#define PANEL_PAIR 32  /* output columns computed together */

typedef struct {
    int32_t layers, hidden, heads, kv_heads, head_dim;
    int32_t capacity;     /* positions per slot, a multiple of 16 */
    int32_t activation;   /* 0 silu, 1 gelu (tanh) */
    int32_t bf16;         /* cache, matrix inputs and weights that are not int8: 1 bf16, 0 fp32 */
    int32_t threads;
    int32_t kernels;      /* which instructions to use, at most what outrider_kernels() says */
    float norm_eps, attention_scale, embed_scale;
} Shape;

enum { KERNELS_BASE, KERNELS_AVX2, KERNELS_AVX512, KERNELS_AMX };

/* A matrix [columns out, depth in], packed: see gemm.h. */
typedef struct {
    const void *data;
    const float *scales;  /* of int8 columns; NULL: stored in the model's precision */
    const float *bias;    /* or NULL */
    int32_t columns;      /* padded to PANEL_PAIR */
    int32_t depth;        /* padded to 32 */
} Matrix;

typedef struct {
    Matrix qkv, o, gate_up, down;
    const float *attention_norm, *mlp_norm;
    const float *q_norm, *k_norm, *attention_out_norm, *mlp_out_norm; /* or NULL */
    const float *cosines, *sines;                                    /* [capacity, head_dim/2] */
    void *keys;    /* [slots, kv_heads, capacity/16, head_dim, 16]: sixteen positions side by side per dimension */
    void *values;  /* [slots, kv_heads, capacity, head_dim] */
    int32_t window; /* 0: everything */
} Layer;

typedef struct {
    Shape shape;
    const Layer *layers;
    const void *embedding; /* [vocab, hidden], as stored; NULL: the rows of head */
    const float *embedding_scales; /* [vocab] of an int8 embedding, or NULL */
    const float *norm;
    Matrix head;
    /* workspace of as many rows as a pass may have, a multiple of 32 */
    float *residual;  /* [rows, hidden] */
    void *normed;     /* [rows, depth of qkv]: input of qkv, gate_up and head */
    float *qkv;       /* [rows, columns of qkv] */
    void *attended;   /* [rows, depth of o] */
    float *update;    /* [rows, columns of o] */
    void *gated;      /* [rows, depth of down] */
    float *scores;    /* [threads, heads/kv_heads, capacity] */
    uint16_t *widened; /* [threads, widened_size]: a pair of panels of int8 weights as bf16 */
    int64_t widened_size;
} Model;

/* The rows of one pass. Row r sees positions 0..base-1 of its slot's committed prefix, then paths[starts[r]..starts[r+1]),
 * the cache indices of its pending ancestors in order of position, its own last. */
typedef struct {
    int32_t rows, wanted;
    const int32_t *tokens, *slots, *bases, *starts, *paths;
    const int32_t *wanted_rows;
    float *logits; /* [wanted padded to ROW_TILE, columns of head] */
} Pass;

/* The share of `thread` of `threads` of one pass; each instruction set has its own, see isa_*.c. */
typedef void (*PassFunction)(const Model *, const Pass *, int thread, int threads);
void pass_v4(const Model *, const Pass *, int thread, int threads);
void pass_v3(const Model *, const Pass *, int thread, int threads);
void pass_base(const Model *, const Pass *, int thread, int threads);

#endif
