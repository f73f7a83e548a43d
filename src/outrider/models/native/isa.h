/* What the system brings, before an isa_*.c says which instructions its own code may use: those of intrinsics' headers are
 * each function's own. */
#ifndef OUTRIDER_ISA_H
#define OUTRIDER_ISA_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
/* Before 16, which Apple calls 15, clang hides them where the whole file may not use them. */
#if !defined(__clang__)
#define ARM_EXTENSIONS
#elif defined(__apple_build_version__)
#if __clang_major__ >= 15
#define ARM_EXTENSIONS
#endif
#elif __clang_major__ >= 16
#define ARM_EXTENSIONS
#endif
#endif

#endif
