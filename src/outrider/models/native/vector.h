/* Sixteen floats at a time, on any CPU: vector types of GCC and Clang become AVX-512, AVX2, NEON or plain code, as isa_*.c asks.
 *
 * Everything here is element-wise or sums in one fixed order, so results never depend on how rows are grouped. That holds
 * because nothing is fused but what is written so (-ffp-contract=off): left to itself, a compiler fuses a multiplication
 * with an addition here and not there.
 */
#ifndef OUTRIDER_VECTOR_H
#define OUTRIDER_VECTOR_H

#include "isa.h"

#define LANES 16

/* Short loops over arrays of vectors: unrolled, the arrays become registers. */
#define UNROLL _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))

/* aligned(4): loads and stores may be unaligned. */
typedef float v16 __attribute__((vector_size(64), aligned(4)));
typedef int32_t i16 __attribute__((vector_size(64), aligned(4)));
typedef uint32_t u16v __attribute__((vector_size(64), aligned(4)));
typedef uint16_t h16 __attribute__((vector_size(32), aligned(2)));
typedef int16_t s16 __attribute__((vector_size(32), aligned(2)));
typedef int8_t b16 __attribute__((vector_size(16), aligned(1)));

/* Subtracting zero is exact and folds away; listing x sixteen times makes GCC insert it sixteen times. */
INLINE v16 splat(float x) { return x - (v16){0}; }

INLINE float bf16_to_float(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

INLINE v16 widen(h16 h) { return (v16)(__builtin_convertvector(h, u16v) << 16); }

INLINE v16 from_int8(b16 b) { /* in two steps: GCC takes the direct one apart byte by byte */
    return __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(b, s16), i16), v16);
}

/* In the upper halves: the nearest bf16, ties to even. */
INLINE u16v nearest_bf16(v16 x) {
    u16v bits = (u16v)x;
    return bits + 0x7fff + ((bits >> 16) & 1);
}

INLINE h16 narrow(v16 x) { return __builtin_convertvector(nearest_bf16(x) >> 16, h16); }

/* The same by an instruction where all who ask have it, which are the kernels of bf16 tiles; a number too small to be normal is
 * zero there, as it is to the tiles. */
INLINE h16 narrow_fast(v16 x) {
#if defined(WITH_AMX)
    return (h16)_mm512_cvtneps_pbh((__m512)x);
#else
    return narrow(x);
#endif
}

/* One vector from memory holding bf16 or fp32 elements, `at` counted in elements. */
INLINE v16 load(const void *base, int64_t at, int bf16) {
    return bf16 ? widen(*(const h16 *)((const uint16_t *)base + at)) : *(const v16 *)((const float *)base + at);
}

/* How numbers are kept. */
typedef enum {
    FP32,
    BF16,    /* what bf16_products of gemm.h take */
    ROUNDED, /* to what bf16 can hold, as fp32 */
} Form;

INLINE void store(void *base, int64_t at, v16 x, Form form) {
    if (form == BF16)
        *(h16 *)((uint16_t *)base + at) = narrow_fast(x);
    else
        *(v16 *)((float *)base + at) = form == ROUNDED ? (v16)(nearest_bf16(x) & 0xffff0000u) : x;
}

/* Past the caches, where the CPU has it and `to` is aligned: other threads see it after a fence (pool_barrier). */
INLINE void store_away(float *to, v16 x) {
#if defined(WITH_AVX512)
    if ((uintptr_t)to % sizeof x == 0) {
        _mm512_stream_ps(to, (__m512)x);
        return;
    }
#endif
    *(v16 *)to = x;
}

#if defined(__x86_64__) /* four at a time, as every x86-64 CPU can: lane by lane, rounding a row took as long as multiplying it */
typedef union {
    v16 all;
    __m128 q[4];
} Quads;
#endif

/* Halves are added to halves. */
INLINE float sum(v16 x) {
#if defined(__x86_64__)
    const Quads s = {x};
    const __m128 four = _mm_add_ps(_mm_add_ps(s.q[0], s.q[2]), _mm_add_ps(s.q[1], s.q[3]));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
    float s[LANES];
    memcpy(s, &x, sizeof s);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) s[i] += s[i + width];
    return s[0];
#endif
}

INLINE v16 choose(i16 mask, v16 yes, v16 no) { return (v16)((mask & (i16)yes) | (~mask & (i16)no)); }

#if defined(__aarch64__)
/* GCC compares wide vectors lane by lane here; four at a time then. */
typedef union {
    v16 all;
    float32x4_t q[4];
} Quads;

INLINE v16 maximum(v16 a, v16 b) {
    Quads x = {a}, y = {b};
    UNROLL for (int i = 0; i < 4; i++) x.q[i] = vmaxnmq_f32(x.q[i], y.q[i]);
    return x.all;
}

/* What is no number stays none. */
INLINE v16 at_least(v16 a, float low) {
    Quads x = {a};
    UNROLL for (int i = 0; i < 4; i++) x.q[i] = vmaxq_f32(x.q[i], vdupq_n_f32(low));
    return x.all;
}
INLINE v16 at_most(v16 a, float high) {
    Quads x = {a};
    UNROLL for (int i = 0; i < 4; i++) x.q[i] = vminq_f32(x.q[i], vdupq_n_f32(high));
    return x.all;
}

INLINE int any_above(v16 a, v16 b) {
    Quads x = {a}, y = {b};
    uint32x4_t found = vdupq_n_u32(0);
    UNROLL for (int i = 0; i < 4; i++) found = vorrq_u32(found, vcgtq_f32(x.q[i], y.q[i]));
    return vmaxvq_u32(found) != 0;
}

INLINE float max_lane(v16 a) {
    const Quads x = {a};
    return vmaxnmvq_f32(vmaxnmq_f32(vmaxnmq_f32(x.q[0], x.q[1]), vmaxnmq_f32(x.q[2], x.q[3])));
}
#elif defined(__x86_64__)
/* GCC compares wide vectors lane by lane without AVX-512. Of two, the instructions take the second where either is no
 * number. */
#if defined(WITH_AVX512)
INLINE v16 maximum(v16 a, v16 b) { return (v16)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE v16 minimum(v16 a, v16 b) { return (v16)_mm512_min_ps((__m512)a, (__m512)b); }
#else
INLINE v16 maximum(v16 a, v16 b) {
    Quads x = {a};
    const Quads y = {b};
    UNROLL for (int i = 0; i < 4; i++) x.q[i] = _mm_max_ps(x.q[i], y.q[i]);
    return x.all;
}
INLINE v16 minimum(v16 a, v16 b) {
    Quads x = {a};
    const Quads y = {b};
    UNROLL for (int i = 0; i < 4; i++) x.q[i] = _mm_min_ps(x.q[i], y.q[i]);
    return x.all;
}
#endif

INLINE v16 at_least(v16 x, float low) { return maximum(splat(low), x); }
INLINE v16 at_most(v16 x, float high) { return minimum(splat(high), x); }

INLINE int any_above(v16 a, v16 b) {
    const Quads x = {a}, y = {b};
    __m128 found = _mm_setzero_ps();
    UNROLL for (int i = 0; i < 4; i++) found = _mm_or_ps(found, _mm_cmpgt_ps(x.q[i], y.q[i]));
    return _mm_movemask_ps(found) != 0;
}

INLINE float max_lane(v16 x) {
    const Quads s = {x};
    const __m128 four = _mm_max_ps(_mm_max_ps(s.q[0], s.q[1]), _mm_max_ps(s.q[2], s.q[3]));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
#else
INLINE v16 maximum(v16 a, v16 b) { return choose(a > b, a, b); }

INLINE v16 at_least(v16 x, float low) { return choose(x < splat(low), splat(low), x); }
INLINE v16 at_most(v16 x, float high) { return choose(x > splat(high), splat(high), x); }

INLINE int any_above(v16 a, v16 b) {
    const i16 mask = a > b;
    int found = 0;
    for (int i = 0; i < LANES; i++) found |= mask[i];
    return found != 0;
}

INLINE float max_lane(v16 x) {
    float s[LANES], m;
    memcpy(s, &x, sizeof s);
    m = s[0];
    for (int i = 1; i < LANES; i++) m = s[i] > m ? s[i] : m;
    return m;
}
#endif

/* a * b + c, rounded once where the CPU can. */
INLINE v16 fused(v16 a, v16 b, v16 c) {
#if defined(__aarch64__)
    Quads x = {a}, y = {b}, z = {c};
    UNROLL for (int i = 0; i < 4; i++) z.q[i] = vfmaq_f32(z.q[i], x.q[i], y.q[i]);
    return z.all;
#elif defined(WITH_AVX512)
    return (v16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(WITH_AVX2)
    typedef union {
        v16 all;
        __m256 half[2];
    } Halves;
    Halves x = {a}, y = {b}, z = {c};
    UNROLL for (int i = 0; i < 2; i++) z.half[i] = _mm256_fmadd_ps(x.half[i], y.half[i], z.half[i]);
    return z.all;
#else
    return a * b + c;
#endif
}

/* e^x within 2 ulp for x in [-87, 88]; at least that of -87. x = n ln2 + r, |r| <= ln2/2, e^r by a polynomial. */
INLINE v16 exponential_below_88(v16 x) {
    x = at_least(x, -87.0f);
    const v16 magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to the nearest integer */
    const v16 shifted = fused(x, splat(1.44269504088896341f), magic), n = shifted - magic;
    v16 r = fused(n, splat(-0.693145751953125f), x);
    r = fused(n, splat(-1.42860682030941723e-6f), r);
    v16 p = splat(1.9875691500e-4f);
    p = fused(p, r, splat(1.3981999507e-3f));
    p = fused(p, r, splat(8.3334519073e-3f));
    p = fused(p, r, splat(4.1665795894e-2f));
    p = fused(p, r, splat(1.6666665459e-1f));
    p = fused(p, r, splat(5.0000001201e-1f));
    p = fused(p * r, r, r) + splat(1.0f);
    return (v16)((i16)p + ((i16)shifted << 23)); /* n is in the last bits of what it was added to */
}

INLINE v16 exponential(v16 x) { return exponential_below_88(at_most(x, 88.0f)); }

INLINE v16 silu(v16 x) { return x / (splat(1.0f) + exponential(-x)); }

/* cap * tanh(x / cap). */
INLINE v16 capped(v16 x, float cap) {
    return splat(cap) * (splat(1.0f) - splat(2.0f) / (exponential(x * splat(2.0f / cap)) + splat(1.0f)));
}

/* tanh-approximated GELU: x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3). */
INLINE v16 gelu_tanh(v16 x) {
    v16 u = splat(1.5957691216057308f) * (x + splat(0.044715f) * x * x * x);
    return x / (splat(1.0f) + exponential(-u));
}

#endif
