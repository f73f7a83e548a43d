/* The pass for AVX2 with integer dot products. */
#include "isa.h"

#if defined(__x86_64__)
#define WITH_AVX2
#define WITH_AVXVNNI
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("arch=x86-64-v3,avxvnni"))), apply_to = function)
#else
#pragma GCC target("arch=x86-64-v3,avxvnni")
#endif
#include "pass.h"

DEFINE(avxvnni)
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
