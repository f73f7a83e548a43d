/* The pass for aarch64 with matrix products of integers. */
#include "isa.h"

#if defined(ARM_EXTENSIONS)
#define WITH_DOTPROD
#define WITH_I8MM
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod,i8mm"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod+i8mm")
#endif
#include "pass.h"

DEFINE(i8mm)
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
