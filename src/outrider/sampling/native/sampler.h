/* What the sampler's parts share; sampler.py mirrors `Ask` field by field. */
#ifndef OUTRIDER_SAMPLER_H
#define OUTRIDER_SAMPLER_H

#include <stdint.h>

/* One row to choose a token from. */
typedef struct {
    const void *logits; /* [count] fp32, or fp64 where `wide` */
    int32_t count;
    int32_t wide;
    uint32_t low, high; /* the row key, see noise.py */
    double temperature; /* 0: the largest logit; else within 1e-30 .. 1e30 */
    double top_p;       /* 1: off */
    double least;       /* log of min_p; -infinity: off */
    int32_t top_k;      /* 0: off; not together with top_p */
} Ask;

enum { UNCLEAR = -1 };

int32_t sample_base(const Ask *ask);
int32_t sample_v3(const Ask *ask);
int32_t sample_v4(const Ask *ask);

#endif
