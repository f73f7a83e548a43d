/* The pass for AVX2. */
#include "isa.h"

#if defined(__x86_64__)
#define WITH_AVX2
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("arch=x86-64-v3"))), apply_to = function)
#else
#pragma GCC target("arch=x86-64-v3")
#endif
#include "pass.h"

DEFINE(avx2)
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
