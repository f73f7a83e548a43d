/* What Python calls: a pass in the best instruction set this CPU has, and moves within the cache. */
#include "decoder.h"

#include <string.h>

#include "pool.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18

/* CPUID.7.0:EDX says the CPU has tiles, bf16 and int8 products; the kernel must also let this process use them. */
static int have_amx(void) {
    unsigned a, b, c, d = 0;
    int cpu = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1);
    return cpu && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#else
static int have_amx(void) { return 0; }
#endif

/* The best instructions this CPU has, for Shape.kernels; also asks for leave to use them. */
int outrider_kernels(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4")) {
        if (!__builtin_cpu_supports("avx512vnni")) return KERNELS_AVX512;
        return have_amx() ? KERNELS_AMX : KERNELS_VNNI;
    }
    if (__builtin_cpu_supports("x86-64-v3")) return KERNELS_AVX2;
#endif
    return KERNELS_BASE;
}

static PassFunction pass_for(int kernels) {
#if defined(__x86_64__)
    if (kernels >= KERNELS_AVX512) return pass_v4;
    if (kernels == KERNELS_AVX2) return pass_v3;
#endif
    (void)kernels;
    return pass_base;
}

typedef struct {
    PassFunction run;
    const Model *model;
    const Pass *pass;
} Job;

static void run_job(const void *argument, int thread, int threads) {
    const Job *job = argument;
    job->run(job->model, job->pass, thread, threads);
}

void outrider_forward(const Model *m, const Pass *pass) {
    Job job = {pass_for(m->shape.kernels), m, pass};
    pool_run(run_job, &job, m->shape.threads);
}

/* Move cache rows from[i] to to[i] of one slot, in order (see slots.py). */
void outrider_move(const Model *m, int slot, int count, const int32_t *from, const int32_t *to) {
    const Shape *s = &m->shape;
    const int dim = s->head_dim, size = s->bf16 ? 2 : 4;
    for (int l = 0; l < s->layers; l++)
        for (int h = 0; h < s->kv_heads; h++) {
            const int64_t head = ((int64_t)slot * s->kv_heads + h) * s->capacity * dim * size;
            char *keys = (char *)m->layers[l].keys + head, *values = (char *)m->layers[l].values + head;
            for (int i = 0; i < count; i++) {
                memcpy(values + (int64_t)to[i] * dim * size, values + (int64_t)from[i] * dim * size, (size_t)dim * size);
                const int64_t source = (int64_t)(from[i] / PANEL) * dim * PANEL + from[i] % PANEL;
                const int64_t target = (int64_t)(to[i] / PANEL) * dim * PANEL + to[i] % PANEL;
                for (int d = 0; d < dim; d++)
                    memcpy(keys + (target + (int64_t)d * PANEL) * size, keys + (source + (int64_t)d * PANEL) * size,
                           (size_t)size);
            }
        }
}
