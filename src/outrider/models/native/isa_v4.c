/* The pass for AVX-512, and AMX where the CPU has it. The pragma comes first: vector code is laid out as it is read. */
#if defined(__x86_64__)
#pragma GCC target("arch=x86-64-v4")
#if defined(__linux__)
#define WITH_AMX
#endif
#include "pass.h"

void pass_v4(const Model *m, const Pass *pass, int thread, int threads) { run(m, pass, thread, threads); }
#endif
