/* The pass for aarch64 with integer dot products. */
#include "isa.h"

#if defined(ARM_EXTENSIONS)
#define WITH_DOTPROD
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif
#include "pass.h"

DEFINE(dotprod)
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
