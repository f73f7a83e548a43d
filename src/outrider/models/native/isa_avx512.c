/* The pass for AVX-512. */
#include "isa.h"

#if defined(__x86_64__)
#define WITH_AVX2
#define WITH_AVX512
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("arch=x86-64-v4"))), apply_to = function)
#else
#pragma GCC target("arch=x86-64-v4")
#endif
#include "pass.h"

DEFINE(avx512)
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
