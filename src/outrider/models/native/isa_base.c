/* The pass for any CPU. */
#include "pass.h"

void pass_base(const Model *m, const Pass *pass, int thread, int threads) { run(m, pass, thread, threads); }
