/* Scalar functions that compilers turn into vector code when a loop calls them. */
#ifndef OUTRIDER_ARITHMETIC_H
#define OUTRIDER_ARITHMETIC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

INLINE uint32_t mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* k of noise.py: u = (k + 1/2) / 2^32. */
INLINE uint32_t uniform(uint32_t token, uint32_t low, uint32_t high) {
    return mix(mix(token * 0x9e3779b9u ^ low) + high) ^ 0x80000000u;
}

INLINE float as_float(int32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

INLINE int32_t as_bits(float x) {
    int32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* e^x for x <= 0 within a relative error of 2e-7; below -87 some value under 2e-38. x = n ln2 + r, |r| <= ln2 / 2. */
INLINE float exponential(float x) {
    x = x > -87.0f ? x : -87.0f;
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to the nearest integer */
    float n = (x * 1.44269504088896341f + magic) - magic;
    float r = x - n * 0.693145751953125f;
    r = r - n * 1.42860682030941723e-6f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return as_float(as_bits(p) + (int32_t)n * (1 << 23));
}

#endif
