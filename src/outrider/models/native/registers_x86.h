/* Sixteen floats in registers of x86 with fused multiply-adds: one of AVX-512, or two of AVX2. */
#ifndef OUTRIDER_REGISTERS_X86_H
#define OUTRIDER_REGISTERS_X86_H

#include "vector.h"

#if defined(WITH_AVX512)
#define PARTS 1 /* registers for sixteen floats */
typedef __m512 Part;
INLINE Part part_of(float x) { return _mm512_set1_ps(x); }
INLINE Part part_at(const float *from) { return _mm512_loadu_ps(from); }
INLINE void keep_part(float *to, Part x) { _mm512_storeu_ps(to, x); }
INLINE Part fused_part(Part a, Part b, Part c) { return _mm512_fmadd_ps(a, b, c); } /* a * b + c */
INLINE Part wide_part(const uint16_t *from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from)), 16));
}
/* The first and the second of every two neighbours. */
INLINE Part even_part(const uint16_t *from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(from), 16));
}
INLINE Part odd_part(const uint16_t *from) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(from), _mm512_set1_epi32((int)0xffff0000u)));
}
#else
#define PARTS 2
typedef __m256 Part;
INLINE Part part_of(float x) { return _mm256_set1_ps(x); }
INLINE Part part_at(const float *from) { return _mm256_loadu_ps(from); }
INLINE void keep_part(float *to, Part x) { _mm256_storeu_ps(to, x); }
INLINE Part fused_part(Part a, Part b, Part c) { return _mm256_fmadd_ps(a, b, c); }
INLINE Part wide_part(const uint16_t *from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)), 16));
}
/* Both by the unit that does no multiply-adds: a shift or a mask would take their place. */
INLINE Part even_part(const uint16_t *from) {
    const __m128i up = _mm_setr_epi8(-1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13);
    return _mm256_castsi256_ps(
        _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)from), _mm256_broadcastsi128_si256(up)));
}
INLINE Part odd_part(const uint16_t *from) {
    return _mm256_castsi256_ps(_mm256_blend_epi16(_mm256_setzero_si256(), _mm256_loadu_si256((const __m256i *)from), 0xaa));
}
#endif
#define PART_LANES (LANES / PARTS)

/* sum + a * b, in place: left to itself, GCC moves sums from register to register. */
INLINE Part plus_product(Part sum, Part a, Part b) {
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

#endif
