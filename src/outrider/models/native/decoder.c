/* What Python calls: a pass in the best instruction set this CPU has, and moves within the cache. */
#include "decoder.h"

#include "cache.h"
#include "isa.h"

#include <string.h>

#include "pool.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18

/* CPUID.7.0:EDX says the CPU has tiles, bf16 and int8 products, CPUID.7.1:EAX that AVX-512 can round to bf16; the kernel must
 * also let this process use tiles. */
static int have_amx(void) {
    unsigned a, b, c, d = 0;
    const int tiles = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1);
    return tiles && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1) && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#else
static int have_amx(void) { return 0; }
#endif

/* clang knew no name for it before 16. */
static int have_f16c(void) {
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}

static int have_avxvnni(void) {
    unsigned a = 0, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

/* Whether this CPU has the instructions; also asks for leave to use them. */
int outrider_has(int kernels) {
    __builtin_cpu_init();
    const int v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
                   have_f16c();
    const int v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512cd");
    switch (kernels) {
        case KERNELS_BASE: return 1;
        case KERNELS_AVX2: return v3;
        case KERNELS_AVXVNNI: return v3 && have_avxvnni();
        case KERNELS_AVX512: return v4;
        case KERNELS_VNNI: return v4 && __builtin_cpu_supports("avx512vnni");
        case KERNELS_AMX: return v4 && __builtin_cpu_supports("avx512vnni") && have_amx();
        default: return 0;
    }
}
#elif defined(ARM_EXTENSIONS)
#if defined(__APPLE__)
#include <sys/sysctl.h>

static int feature(const char *name) {
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname(name, &has, &size, 0, 0) == 0 && has;
}
static int have_dotprod(void) { return feature("hw.optional.arm.FEAT_DotProd"); }
static int have_i8mm(void) { return feature("hw.optional.arm.FEAT_I8MM"); }
static int have_bf16(void) { return feature("hw.optional.arm.FEAT_BF16"); }
#elif defined(__linux__)
#include <sys/auxv.h>

static int have_dotprod(void) { return getauxval(AT_HWCAP) >> 20 & 1; }
static int have_i8mm(void) { return getauxval(AT_HWCAP2) >> 13 & 1; }
static int have_bf16(void) { return getauxval(AT_HWCAP2) >> 14 & 1; }
#else
static int have_dotprod(void) { return 0; }
static int have_i8mm(void) { return 0; }
static int have_bf16(void) { return 0; }
#endif

int outrider_has(int kernels) {
    switch (kernels) {
        case KERNELS_BASE: return 1;
        case KERNELS_DOTPROD: return have_dotprod();
        case KERNELS_I8MM: return have_dotprod() && have_i8mm();
        case KERNELS_BF16: return have_dotprod() && have_i8mm() && have_bf16();
        default: return 0;
    }
}
#else
int outrider_has(int kernels) { return kernels == KERNELS_BASE; }
#endif

typedef struct {
    PassFunction pass;
    ProductFunction product;
} Entries;

#define ENTRIES(ISA) ((Entries){pass_##ISA, product_##ISA})
static Entries entries(int kernels) {
    switch (kernels) {
#if defined(__x86_64__)
        case KERNELS_AVX2: return ENTRIES(avx2);
        case KERNELS_AVXVNNI: return ENTRIES(avxvnni);
        case KERNELS_AVX512: return ENTRIES(avx512);
        case KERNELS_VNNI:
        case KERNELS_AMX: return ENTRIES(vnni);
#elif defined(ARM_EXTENSIONS)
        case KERNELS_DOTPROD: return ENTRIES(dotprod);
        case KERNELS_I8MM: return ENTRIES(i8mm);
        case KERNELS_BF16: return ENTRIES(bf16);
#endif
        default: return ENTRIES(base);
    }
}

typedef struct {
    const Model *model;
    const void *what;
} Job;

static void run_pass(const void *argument, int thread, int threads) {
    const Job *job = argument;
    entries(job->model->shape.kernels).pass(job->model, job->what, thread, threads);
}

static void run_product(const void *argument, int thread, int threads) {
    const Job *job = argument;
    entries(job->model->shape.kernels).product(job->model, job->what, thread, threads);
}

void outrider_forward(const Model *m, const Pass *pass) {
    Job job = {m, pass};
    pool_run(run_pass, &job, m->shape.threads);
}

#include "drafts.h" /* which asks for passes */

void outrider_product(const Model *m, const Product *product) {
    Job job = {m, product};
    pool_run(run_product, &job, m->shape.threads);
}

/* Move cache rows from[i] to to[i] of one slot, in order (see slots.py). */
void outrider_move(const Model *m, int slot, int count, const int32_t *from, const int32_t *to) {
    const Shape *s = &m->shape;
    const int size = s->bf16 ? 2 : 4;
    for (int l = 0; l < s->layers; l++)
        for (int h = 0; h < s->kv_heads; h++) {
            const int64_t head = head_at(s, slot, h);
            char *keys = (char *)m->layers[l].keys + head, *values = (char *)m->layers[l].values + head;
            for (int i = 0; i < count; i++)
                for (int d = 0; d < s->head_dim; d++) {
                    memcpy(keys + key_at(s, to[i], d) * size, keys + key_at(s, from[i], d) * size, (size_t)size);
                    memcpy(values + value_at(s, to[i], d) * size, values + value_at(s, from[i], d) * size, (size_t)size);
                }
        }
}

/* What a library tells of itself before it is used: see compiled.py. */
typedef struct {
    const char *name; /* NULL: the end */
    int64_t bytes;
} Size;
#define SIZE(TYPE) {#TYPE, (int64_t)sizeof(TYPE)}

const Size *outrider_sizes(void) {
    static const Size sizes[] = {
        SIZE(Shape), SIZE(Screen), SIZE(Strip), SIZE(Matrix), SIZE(Expert), SIZE(Layer), SIZE(Routing), SIZE(Model),
        SIZE(Fusion), SIZE(Ranked), SIZE(Partial), SIZE(Noise), SIZE(Ranking), SIZE(Pass), SIZE(Wanted),
        SIZE(Node), SIZE(Drafts), SIZE(Product),
        {0, 0},
    };
    return sizes;
}

#ifndef OUTRIDER_BUILD
#define OUTRIDER_BUILD "unknown" /* compiled by hand */
#endif
const char *outrider_build(void) { return OUTRIDER_BUILD; }
