/* What Python calls: the sampler in the best instruction set this CPU has, over many rows at once. */
#include "sampler.h"

typedef struct {
    Ask *asks;
    int32_t count;
    int32_t (*sample)(const Ask *ask);
} Work;

static int32_t (*best(void))(const Ask *) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    /* By what they bring: clang had no names for the levels before 18. */
    const int v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    const int v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512cd");
    if (v3 && v4) return sample_v4;
    if (v3) return sample_v3;
#endif
    return sample_base;
}

static void share(const void *argument, int thread, int threads) {
    const Work *work = argument;
    for (int i = thread; i < work->count; i += threads) work->asks[i].token = work->sample(work->asks + i);
}

/* Answer all asks; with a runner, on `threads` threads. */
void outrider_sample(Ask *asks, int32_t count, Runner run, int32_t threads) {
    Work work = {asks, count, best()};
    if (run && count > 1)
        run(share, &work, threads);
    else
        share(&work, 0, 1);
}

/* What a library tells of itself before it is used: see compiled.py. */
typedef struct {
    const char *name; /* NULL: the end */
    int64_t bytes;
} Size;
#define SIZE(TYPE) {#TYPE, (int64_t)sizeof(TYPE)}

const Size *outrider_sizes(void) {
    static const Size sizes[] = {SIZE(Ask), {0, 0}};
    return sizes;
}

#ifndef OUTRIDER_BUILD
#define OUTRIDER_BUILD "unknown" /* compiled by hand */
#endif
const char *outrider_build(void) { return OUTRIDER_BUILD; }
