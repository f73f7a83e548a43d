/* The pass for AVX2. The pragma comes first: vector code is laid out as it is read. */
#if defined(__x86_64__)
#pragma GCC target("arch=x86-64-v3")
#include "pass.h"

void pass_v3(const Model *m, const Pass *pass, int thread, int threads) { run(m, pass, thread, threads); }
#endif
