/* The pass for AVX-512, and VNNI and AMX where the CPU has them. The pragma comes first: vector code is laid out as it is read. */
#if defined(__x86_64__)
#pragma GCC target("arch=x86-64-v4")
#define WITH_VNNI
#if defined(__linux__)
#define WITH_AMX
#endif
#include "pass.h"

void pass_v4(const Model *m, const Pass *pass, int thread, int threads) { run(m, pass, thread, threads); }
#endif
