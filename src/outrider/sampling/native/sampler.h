/* What the sampler's parts share; sampler.py mirrors `Ask` field by field. */
#ifndef OUTRIDER_SAMPLER_H
#define OUTRIDER_SAMPLER_H

#include <stdint.h>

/* One row to choose a token from, and the token. */
typedef struct {
    const void *logits; /* [count] fp32, or fp64 where `wide` */
    int32_t count;
    int32_t wide;
    uint32_t low, high; /* the row key, see noise.py */
    double temperature; /* 0: the largest logit; else within 1e-30 .. 1e30 */
    double top_p;       /* 1: off */
    double least;       /* log of min_p; -infinity: off */
    int32_t top_k;      /* 0: off; not together with top_p */
    int32_t token;      /* the answer, or UNCLEAR */
} Ask;

/* Runs `job` on several threads, each told its number; the decoder's pool, handed over by Python. */
typedef void (*Job)(const void *argument, int thread, int threads);
typedef void (*Runner)(Job job, const void *argument, int threads);

enum { UNCLEAR = -1 };

int32_t sample_base(const Ask *ask);
int32_t sample_v3(const Ask *ask);
int32_t sample_v4(const Ask *ask);

#endif
