/* What our kernels use of AVX2, AVX-512, VNNI and AMX, in plain C: no emulator at hand runs AVX-512 or AMX, so run.py
 * compiles the kernels against this to see that what they compute is right. How they are encoded it cannot tell. */
#ifndef EMULATED_IMMINTRIN_H
#define EMULATED_IMMINTRIN_H

#include <emmintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define WIDE(SIZE) __attribute__((vector_size(SIZE), aligned(1), may_alias))
#define EMULATED static inline __attribute__((always_inline))
typedef int64_t __m256i WIDE(32);
typedef int64_t __m512i WIDE(64);
typedef float __m256 WIDE(32);
typedef float __m512 WIDE(64);
typedef uint16_t __mmask16;
typedef uint64_t __mmask64;
#define _MM_HINT_T0 3
#define _MM_HINT_T1 2
#undef _mm_prefetch
#define _mm_prefetch(AT, HINT) ((void)(AT))

EMULATED int16_t saturated(int x) { return (int16_t)(x > 32767 ? 32767 : x < -32768 ? -32768 : x); }

/* For a width of BITS: lanes as bytes, 16-bit, 32-bit numbers and floats. */
#define WIDTH_OF(BITS)                                                                                                  \
    typedef union {                                                                                                     \
        __m##BITS##i i;                                                                                                 \
        __m##BITS f;                                                                                                    \
        int8_t b[BITS / 8];                                                                                             \
        uint8_t u[BITS / 8];                                                                                            \
        int16_t h[BITS / 16];                                                                                           \
        uint16_t uh[BITS / 16];                                                                                         \
        int32_t w[BITS / 32];                                                                                           \
        float s[BITS / 32];                                                                                             \
    } V##BITS;                                                                                                          \
    EMULATED __m##BITS##i _mm##BITS##_set1_epi32(int x) { V##BITS v; for (int i = 0; i < BITS / 32; i++) v.w[i] = x; return v.i; } \
    EMULATED __m##BITS##i _mm##BITS##_set1_epi8(char x) { V##BITS v; memset(&v, x, sizeof v); return v.i; }             \
    EMULATED __m##BITS##i _mm##BITS##_set1_epi16(short x) { V##BITS v; for (int i = 0; i < BITS / 16; i++) v.h[i] = x; return v.i; } \
    EMULATED __m##BITS _mm##BITS##_set1_ps(float x) { V##BITS v; for (int i = 0; i < BITS / 32; i++) v.s[i] = x; return v.f; } \
    EMULATED __m##BITS _mm##BITS##_setzero_ps(void) { V##BITS v; memset(&v, 0, sizeof v); return v.f; }                 \
    EMULATED __m##BITS##i _mm##BITS##_setzero_si##BITS(void) { V##BITS v; memset(&v, 0, sizeof v); return v.i; }        \
    EMULATED __m##BITS##i _mm##BITS##_loadu_si##BITS(const void *p) { V##BITS v; memcpy(&v, p, sizeof v); return v.i; } \
    EMULATED __m##BITS _mm##BITS##_loadu_ps(const void *p) { V##BITS v; memcpy(&v, p, sizeof v); return v.f; }          \
    EMULATED void _mm##BITS##_storeu_ps(void *p, __m##BITS x) { memcpy(p, &x, sizeof x); }                              \
    EMULATED void _mm##BITS##_stream_ps(void *p, __m##BITS x) { memcpy(p, &x, sizeof x); }                              \
    EMULATED __m##BITS##i _mm##BITS##_xor_si##BITS(__m##BITS##i a, __m##BITS##i b) { return a ^ b; }                    \
    EMULATED __m##BITS##i _mm##BITS##_and_si##BITS(__m##BITS##i a, __m##BITS##i b) { return a & b; }                    \
    EMULATED __m##BITS _mm##BITS##_castsi##BITS##_ps(__m##BITS##i a) { return (__m##BITS)a; }                           \
    EMULATED __m##BITS##i _mm##BITS##_srli_epi16(__m##BITS##i a, int n) { V##BITS v = {a}; for (int i = 0; i < BITS / 16; i++) v.uh[i] >>= n; return v.i; } \
    EMULATED __m##BITS##i _mm##BITS##_slli_epi32(__m##BITS##i a, int n) { V##BITS v = {a}; for (int i = 0; i < BITS / 32; i++) v.w[i] = (int32_t)((uint32_t)v.w[i] << n); return v.i; } \
    EMULATED __m##BITS##i _mm##BITS##_add_epi32(__m##BITS##i a, __m##BITS##i b) { V##BITS v = {a}, w = {b}; for (int i = 0; i < BITS / 32; i++) v.w[i] += w.w[i]; return v.i; } \
    EMULATED __m##BITS _mm##BITS##_cvtepi32_ps(__m##BITS##i a) { V##BITS v = {a}; for (int i = 0; i < BITS / 32; i++) v.s[i] = (float)v.w[i]; return v.f; } \
    EMULATED __m##BITS _mm##BITS##_max_ps(__m##BITS a, __m##BITS b) { V##BITS x = {.f = a}, y = {.f = b}; for (int i = 0; i < BITS / 32; i++) y.s[i] = x.s[i] > y.s[i] ? x.s[i] : y.s[i]; return y.f; } \
    EMULATED __m##BITS _mm##BITS##_min_ps(__m##BITS a, __m##BITS b) { V##BITS x = {.f = a}, y = {.f = b}; for (int i = 0; i < BITS / 32; i++) y.s[i] = x.s[i] < y.s[i] ? x.s[i] : y.s[i]; return y.f; } \
    static __attribute__((noinline, unused)) __m##BITS _mm##BITS##_fmadd_ps(__m##BITS a, __m##BITS b, __m##BITS c) { V##BITS x = {.f = a}, y = {.f = b}, z = {.f = c}; for (int i = 0; i < BITS / 32; i++) z.s[i] = fmaf(x.s[i], y.s[i], z.s[i]); return z.f; } \
    EMULATED __m##BITS##i _mm##BITS##_shuffle_epi8(__m##BITS##i a, __m##BITS##i b) { V##BITS v = {a}, w = {b}, r; for (int i = 0; i < BITS / 8; i++) r.u[i] = w.u[i] & 128 ? 0 : v.u[i / 16 * 16 + w.u[i] % 16]; return r.i; } \
    EMULATED __m##BITS##i dpbusd_##BITS(__m##BITS##i c, __m##BITS##i a, __m##BITS##i b) { V##BITS z = {c}, x = {a}, y = {b}; for (int i = 0; i < BITS / 8; i++) z.w[i / 4] += x.u[i] * y.b[i]; return z.i; } \
    EMULATED __m##BITS##i _mm##BITS##_slli_epi16(__m##BITS##i a, int n) { V##BITS v = {a}; for (int i = 0; i < BITS / 16; i++) v.uh[i] = (uint16_t)(v.uh[i] << n); return v.i; } \
    EMULATED __m##BITS##i _mm##BITS##_add_epi16(__m##BITS##i a, __m##BITS##i b) { V##BITS v = {a}, w = {b}; for (int i = 0; i < BITS / 16; i++) v.uh[i] += w.uh[i]; return v.i; } \
    EMULATED __m##BITS##i _mm##BITS##_madd_epi16(__m##BITS##i a, __m##BITS##i b) { V##BITS x = {a}, y = {b}, r; for (int i = 0; i < BITS / 32; i++) r.w[i] = x.h[2 * i] * y.h[2 * i] + x.h[2 * i + 1] * y.h[2 * i + 1]; return r.i; } \
    EMULATED __m##BITS##i _mm##BITS##_abs_epi8(__m##BITS##i a) { V##BITS x = {a}; for (int i = 0; i < BITS / 8; i++) x.u[i] = (uint8_t)(x.b[i] < 0 ? -x.b[i] : x.b[i]); return x.i; } \
    EMULATED __m##BITS##i _mm##BITS##_maddubs_epi16(__m##BITS##i a, __m##BITS##i b) { V##BITS x = {a}, y = {b}, r; for (int i = 0; i < BITS / 16; i++) r.h[i] = saturated(x.u[2 * i] * y.b[2 * i] + x.u[2 * i + 1] * y.b[2 * i + 1]); return r.i; }
WIDTH_OF(256)
WIDTH_OF(512)

#undef _mm512_setzero_si512
EMULATED __m512i _mm512_loadu_si512_(const void *p) { return _mm512_loadu_si512(p); }
EMULATED __m512i _mm512_dpbusd_epi32(__m512i c, __m512i a, __m512i b) { return dpbusd_512(c, a, b); }
EMULATED __m256i _mm256_dpbusd_avx_epi32(__m256i c, __m256i a, __m256i b) { return dpbusd_256(c, a, b); }
EMULATED __m512i _mm512_broadcast_i32x4(__m128i a) { V512 v; for (int i = 0; i < 4; i++) memcpy(v.u + 16 * i, &a, 16); return v.i; }
EMULATED __m256i _mm256_broadcastsi128_si256(__m128i a) { V256 v; for (int i = 0; i < 2; i++) memcpy(v.u + 16 * i, &a, 16); return v.i; }
EMULATED __m512i _mm512_cvtepu16_epi32(__m256i a) { V256 x = {a}; V512 v; for (int i = 0; i < 16; i++) v.w[i] = x.uh[i]; return v.i; }
EMULATED __m512i _mm512_cvtepu8_epi32(__m128i a) { uint8_t x[16]; V512 v; memcpy(x, &a, 16); for (int i = 0; i < 16; i++) v.w[i] = x[i]; return v.i; }
EMULATED __m256i _mm256_cvtepu8_epi32(__m128i a) { uint8_t x[16]; V256 v; memcpy(x, &a, 16); for (int i = 0; i < 8; i++) v.w[i] = x[i]; return v.i; }
EMULATED float half_(uint16_t h) { const int e = h >> 10 & 31; const float m = e ? ldexpf((float)((h & 1023) | 1024), e - 25) : ldexpf((float)(h & 1023), -24); return h >> 15 ? -m : m; }
EMULATED __m512 _mm512_cvtph_ps(__m256i a) { V256 x = {a}; V512 v; for (int i = 0; i < 16; i++) v.s[i] = half_(x.uh[i]); return v.f; }
EMULATED __m256 _mm256_cvtph_ps(__m128i a) { uint16_t x[8]; V256 v; memcpy(x, &a, 16); for (int i = 0; i < 8; i++) v.s[i] = half_(x[i]); return v.f; }
EMULATED __mmask64 _mm512_movepi8_mask(__m512i a) { V512 v = {a}; __mmask64 m = 0; for (int i = 0; i < 64; i++) m |= (__mmask64)(v.b[i] < 0) << i; return m; }
EMULATED __m512i _mm512_mask_sub_epi8(__m512i from, __mmask64 m, __m512i a, __m512i b) { V512 v = {from}, x = {a}, y = {b}; for (int i = 0; i < 64; i++) if (m >> i & 1) v.u[i] = (uint8_t)(x.u[i] - y.u[i]); return v.i; }
EMULATED __m256i _mm256_cvtepu16_epi32(__m128i a) { uint16_t x[8]; V256 v; memcpy(x, &a, 16); for (int i = 0; i < 8; i++) v.w[i] = x[i]; return v.i; }
EMULATED __m256i _mm256_blend_epi16(__m256i a, __m256i b, int which) { V256 x = {a}, y = {b}; for (int i = 0; i < 16; i++) if (which >> i % 8 & 1) x.h[i] = y.h[i]; return x.i; }
EMULATED __m128i _mm512_cvtepi32_epi8(__m512i a) { V512 x = {a}; int8_t r[16]; for (int i = 0; i < 16; i++) r[i] = (int8_t)x.w[i]; __m128i v; memcpy(&v, r, 16); return v; }
EMULATED __m256i _mm256_cvtepi8_epi16(__m128i a) { int8_t x[16]; V256 v; memcpy(x, &a, 16); for (int i = 0; i < 16; i++) v.h[i] = x[i]; return v.i; }
EMULATED __m256i _mm256_sign_epi8(__m256i a, __m256i b) { V256 x = {a}, y = {b}; for (int i = 0; i < 32; i++) x.b[i] = (int8_t)(y.b[i] < 0 ? -x.b[i] : y.b[i] ? x.b[i] : 0); return x.i; }
EMULATED __m128i _mm256_castsi256_si128(__m256i a) { __m128i r; memcpy(&r, &a, 16); return r; }
EMULATED __m128i _mm256_extracti128_si256(__m256i a, int n) { __m128i r; memcpy(&r, (const char *)&a + 16 * n, 16); return r; }
EMULATED __mmask16 _mm512_test_epi32_mask(__m512i a, __m512i b) { V512 v = {a & b}; __mmask16 m = 0; for (int i = 0; i < 16; i++) m |= (__mmask16)((v.w[i] != 0) << i); return m; }

EMULATED __m256i _mm512_cvtneps_pbh(__m512 a) {
    V256 r;
    for (int i = 0; i < 16; i++) {
        uint32_t bits;
        memcpy(&bits, (const char *)&a + 4 * i, 4);
        const uint32_t size = bits & 0x7fffffff;
        r.uh[i] = size < 0x800000 ? bits >> 16 & 0x8000 : size > 0x7f800000 ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
    return r.i;
}

/* AMX: eight tiles of at most sixteen rows of 64 bytes, as configured. */
static __thread struct {
    uint8_t rows[8];
    uint16_t bytes[8];
    union {
        uint8_t u[16][64];
        int8_t b[16][64];
        int32_t w[16][16];
        float s[16][16];
        uint16_t h[16][32];
    } tile[8];
} tiles_;

EMULATED void _tile_loadconfig(const void *p) {
    for (int t = 0; t < 8; t++) {
        memcpy(&tiles_.bytes[t], (const char *)p + 16 + 2 * t, 2);
        tiles_.rows[t] = ((const uint8_t *)p)[48 + t];
    }
    memset(tiles_.tile, 0, sizeof tiles_.tile);
}
EMULATED void _tile_release(void) {}
EMULATED void _tile_zero(int t) { memset(&tiles_.tile[t], 0, sizeof tiles_.tile[t]); }
EMULATED void _tile_loadd(int t, const void *p, int64_t stride) {
    _tile_zero(t);
    for (int r = 0; r < tiles_.rows[t]; r++) memcpy(tiles_.tile[t].u[r], (const char *)p + r * stride, tiles_.bytes[t]);
}
#define _tile_stream_loadd _tile_loadd
EMULATED void _tile_stored(int t, void *p, int64_t stride) {
    for (int r = 0; r < tiles_.rows[t]; r++) memcpy((char *)p + r * stride, tiles_.tile[t].u[r], tiles_.bytes[t]);
}
EMULATED void _tile_dpbssd(int c, int a, int b) {
    for (int r = 0; r < tiles_.rows[a]; r++)
        for (int k = 0; k < tiles_.bytes[a]; k++)
            for (int n = 0; n < tiles_.bytes[b] / 4; n++)
                tiles_.tile[c].w[r][n] += tiles_.tile[a].b[r][k] * tiles_.tile[b].b[k / 4][4 * n + k % 4];
}
EMULATED float bf16_(uint16_t h) { uint32_t bits = (uint32_t)h << 16; float x; memcpy(&x, &bits, 4); return x; }
EMULATED void _tile_dpbf16ps(int c, int a, int b) {
    for (int r = 0; r < tiles_.rows[a]; r++)
        for (int k = 0; k < tiles_.bytes[a] / 2; k++)
            for (int n = 0; n < tiles_.bytes[b] / 4; n++)
                tiles_.tile[c].s[r][n] += bf16_(tiles_.tile[a].h[r][k]) * bf16_(tiles_.tile[b].h[k / 2][2 * n + k % 2]);
}

#endif
