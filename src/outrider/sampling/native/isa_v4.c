/* The sampler for AVX-512. The pragma comes first: code is laid out as it is read. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("arch=x86-64-v4"))), apply_to = function)
#else
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#endif
#include "both.h"

int32_t sample_v4(const Ask *ask) { return sample(ask); }
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
