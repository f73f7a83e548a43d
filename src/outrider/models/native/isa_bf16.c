/* The pass for aarch64 with matrix products of integers and of bf16. */
#include "isa.h"

#if defined(ARM_EXTENSIONS)
#define WITH_DOTPROD
#define WITH_I8MM
#define WITH_BF16
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod,i8mm,bf16"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod+i8mm+bf16")
#endif
#include "pass.h"

DEFINE(bf16)
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
