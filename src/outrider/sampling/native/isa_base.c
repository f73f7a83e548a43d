/* The sampler for any CPU. */
#include "both.h"

int32_t sample_base(const Ask *ask) { return sample(ask); }
