/* What Python calls: the sampler in the best instruction set this CPU has. */
#include "sampler.h"

int32_t outrider_sample(const Ask *ask) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4")) return sample_v4(ask);
    if (__builtin_cpu_supports("x86-64-v3")) return sample_v3(ask);
#endif
    return sample_base(ask);
}
