/* The sampler for AVX-512. The pragma comes first: code is laid out as it is read. */
#if defined(__x86_64__)
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#include "both.h"

int32_t sample_v4(const Ask *ask) { return sample(ask); }
#endif
