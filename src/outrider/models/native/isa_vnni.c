/* The pass for AVX-512 with integer dot products, and AMX where the CPU has it: instructions for bf16 are used with that alone. */
#include "isa.h"

#if defined(__x86_64__)
#define WITH_AVX2
#define WITH_AVX512
#define WITH_VNNI
#if defined(__linux__)
#define WITH_AMX
#endif
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("arch=x86-64-v4,avx512vnni,avx512bf16"))), apply_to = function)
#else
#pragma GCC target("arch=x86-64-v4,avx512vnni,avx512bf16")
#endif
#include "pass.h"

DEFINE(vnni)
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
