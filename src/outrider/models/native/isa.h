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
#endif

#endif
