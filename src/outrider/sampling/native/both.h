/* The same sampler over fp32 logits and over fp64 ones (which penalties and bias leave). */
#include "arithmetic.h"
#include "sampler.h"

#define REAL float
#define NAME(name) name##_32
#include "row.h"
#undef REAL
#undef NAME
#define REAL double
#define NAME(name) name##_64
#include "row.h"

static int32_t sample(const Ask *ask) { return ask->wide ? sample_64(ask) : sample_32(ask); }
