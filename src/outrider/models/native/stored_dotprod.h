/* Products of stored.h on aarch64 with dot products: codes are taken apart in registers, on their way to being multiplied. */
#ifndef OUTRIDER_STORED_DOTPROD_H
#define OUTRIDER_STORED_DOTPROD_H

#define CODE_ROWS 4

#define COUNTED 0x4b400000 /* the bits of 1.5 * 2^23, a float whose last bits count integers below 2^22 */

/* An integer counted in a float. */
INLINE float32x4_t counted(int32x4_t sums) {
    return vsubq_f32(vreinterpretq_f32_s32(sums), vreinterpretq_f32_u32(vdupq_n_u32(COUNTED)));
}

/* Sixteen bytes, at this place of the program: left to itself, the compiler loads all it can long before, and runs out of
 * registers; and a copy between registers would take the unit that computes. */
INLINE uint8x16_t four_at(const void *from) {
    uint8x16_t found;
    __asm__ volatile("ldr %q0, %1" : "=w"(found) : "m"(*(const uint8_t(*)[16])from));
    return found;
}

#define EACH_QUAD UNROLL for (int q = 0; q < quads; q++)
#define EACH_ROW UNROLL for (int r = 0; r < rows; r++)

/* The products of a part in assembly, since no compiler at hand keeps so many sums in place. Operands 0 to 7 are the sums: of
 * one or two rows, four of each; of three or four, two. v16 has the weights of a four, v20-v23 the rows' inputs. */
#define DOT(SUM, IN, LANE) "sdot %" #SUM ".4s, v16.16b, v" #IN ".4b[" #LANE "]\n\t"
#define WIDE_1(GET, AT, L) \
    GET(AT) DOT(0, 20, L) GET(AT + 16) DOT(1, 20, L) GET(AT + 32) DOT(2, 20, L) GET(AT + 48) DOT(3, 20, L)
#define WIDE_2(GET, AT, L)                                                  \
    GET(AT) DOT(0, 20, L) DOT(4, 21, L) GET(AT + 16) DOT(1, 20, L) DOT(5, 21, L) \
    GET(AT + 32) DOT(2, 20, L) DOT(6, 21, L) GET(AT + 48) DOT(3, 20, L) DOT(7, 21, L)
#define WIDE_3(GET, AT, L)                                                  \
    GET(AT) DOT(0, 20, L) DOT(2, 21, L) DOT(4, 22, L) GET(AT + 16) DOT(1, 20, L) DOT(3, 21, L) DOT(5, 22, L)
#define WIDE_4(GET, AT, L)                                                  \
    GET(AT) DOT(0, 20, L) DOT(2, 21, L) DOT(4, 22, L) DOT(6, 23, L)         \
    GET(AT + 16) DOT(1, 20, L) DOT(3, 21, L) DOT(5, 22, L) DOT(7, 23, L)

/* A row's lie ROW bytes behind those of the one before. */
#define INPUT_OF(TO, ROW, AT) "ldr q" #TO ", [%[x], %[row]*" #ROW "+" #AT "]\n\t"
#define INPUTS_OF_1(AT) INPUT_OF(20, 0, AT)
#define INPUTS_OF_2(AT) INPUTS_OF_1(AT) INPUT_OF(21, 1, AT)
#define INPUTS_OF_3(AT) INPUTS_OF_2(AT) INPUT_OF(22, 2, AT)
#define INPUTS_OF_4(AT) INPUTS_OF_3(AT) INPUT_OF(23, 3, AT)

/* To v16, from the codes at `at`: see stored.h for which bits are where. */
#define CODE(TO, AT) "ldr q" #TO ", [%[at], #" #AT "]\n\t"
#define SHL(TO, BITS) "shl v" #TO ".16b, v" #TO ".16b, #" #BITS "\n\t"
#define SLI(TO, FROM, BITS) "sli v" #TO ".16b, v" #FROM ".16b, #" #BITS "\n\t"
#define UPPER "and v16.16b, v16.16b, %[upper].16b\n\t"
#define GET_WHOLE(AT) CODE(16, AT)
#define GET_UPPER(AT) CODE(16, AT) UPPER
#define GET_LOWER(AT) CODE(16, AT) SHL(16, 4)
#define GET_F(AT) CODE(16, AT + 64) CODE(17, AT) SLI(16, 17, 3) SHL(16, 2) UPPER
#define GET_G(AT) CODE(16, AT + 192) CODE(17, AT + 128) SLI(16, 17, 3) SHL(16, 2) UPPER
#define GET_H(AT) CODE(17, AT + 64) CODE(18, AT + 256) CODE(16, AT + 192) SLI(17, 18, 1) SLI(16, 17, 1) SHL(16, 3)
#define GET_LAST(AT) CODE(17, AT + 64) CODE(18, AT) CODE(16, AT + 128) SLI(17, 18, 2) SLI(16, 17, 2) SHL(16, 2)

/* Each asks for what is needed a while later: left to itself, the CPU reads too late. */
#define FOUR_OF(R, GET, AT, L) WIDE_##R(GET, AT, L) "prfm pldl1keep, [%[at], #" #AT "+2048]\n\t"
#define EIGHT_OF(R, GET)                                                                              \
    INPUTS_OF_##R(0) FOUR_OF(R, GET, 0, 0) FOUR_OF(R, GET, 64, 1) FOUR_OF(R, GET, 128, 2)             \
    FOUR_OF(R, GET, 192, 3) INPUTS_OF_##R(16) FOUR_OF(R, GET, 256, 0) FOUR_OF(R, GET, 320, 1)         \
    FOUR_OF(R, GET, 384, 2) FOUR_OF(R, GET, 448, 3)
#define PART_8(R) EIGHT_OF(R, GET_WHOLE)
#define PART_4_LOWER(R) EIGHT_OF(R, GET_LOWER)
#define PART_4_UPPER(R) EIGHT_OF(R, GET_UPPER)
#define PART_5(R)                                                                                     \
    INPUTS_OF_##R(0) FOUR_OF(R, GET_UPPER, 0, 0) FOUR_OF(R, GET_UPPER, 64, 1)                         \
    FOUR_OF(R, GET_UPPER, 128, 2) FOUR_OF(R, GET_UPPER, 192, 3) INPUTS_OF_##R(16)                     \
    FOUR_OF(R, GET_UPPER, 256, 0) WIDE_##R(GET_F, 0, 1) WIDE_##R(GET_G, 0, 2) WIDE_##R(GET_H, 0, 3)
#define PART_6(R)                                                                                     \
    INPUTS_OF_##R(0) FOUR_OF(R, GET_UPPER, 0, 0) FOUR_OF(R, GET_UPPER, 64, 1)                         \
    FOUR_OF(R, GET_UPPER, 128, 2) WIDE_##R(GET_LAST, 0, 3)

#define SUMS_OF_1 "+w"(sums[0]), "+w"(sums[1]), "+w"(sums[2]), "+w"(sums[3])
#define SUMS_OF_2 SUMS_OF_1, "+w"(sums[4]), "+w"(sums[5]), "+w"(sums[6]), "+w"(sums[7])
#define SUMS_OF_3 SUMS_OF_1, "+w"(sums[4]), "+w"(sums[5])
#define SUMS_OF_4 SUMS_OF_2
#define PRODUCTS(R, PART)                                                                        \
    if (rows == R)                                                                               \
        __asm__ volatile(PART(R) : SUMS_OF_##R                                                   \
                         : [at] "r"(at), [x] "r"(x), [row] "i"(sizeof(Inputs)), [upper] "w"(upper)  \
                         : "memory", "v16", "v17", "v18", "v20", "v21", "v22", "v23");
#define PRODUCTS_OF(PART) PRODUCTS(1, PART) PRODUCTS(2, PART) PRODUCTS(3, PART) PRODUCTS(4, PART)

/* Products of part `part` of a span with `rows` rows, added to their sums; all but the addresses constant. */
INLINE void add_codes(const uint8_t *at, int bits, int part, const int8_t *x, int rows, int32x4_t *sums) {
    const uint8x16_t upper = vdupq_n_u8((uint8_t)(0xff << (8 - bits)));
    if (bits == 8) at += part * 8 * 64;
    if (bits == 5) at += part * 5 * 64;
    if (bits == 6) at += part * 3 * 64;
    if (bits == 8) {
        PRODUCTS_OF(PART_8)
    } else if (bits == 6) {
        PRODUCTS_OF(PART_6)
    } else if (bits == 5) {
        PRODUCTS_OF(PART_5)
    } else if (part) {
        PRODUCTS_OF(PART_4_UPPER)
    } else {
        PRODUCTS_OF(PART_4_LOWER)
    }
}

/* sum += a * b, in place. */
INLINE void fused_to(float32x4_t *sum, float32x4_t a, float32x4_t b) {
    __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(*sum) : "w"(a), "w"(b));
}

INLINE float32x4_t four_halves(const uint8_t *from) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from))); }

/* The steps of sixteen columns, four of them: bytes become numbers as the second bytes of 32768 + byte. */
INLINE float32x4_t four_steps(const uint8_t *from, int kind, int q) {
    static const uint8_t number[16] = {0, 0, 0, 0x47, 0, 0, 0, 0x47, 0, 0, 0, 0x47, 0, 0, 0, 0x47};
    static const uint8_t places[4][16] = {
        {255, 0, 255, 255, 255, 1, 255, 255, 255, 2, 255, 255, 255, 3, 255, 255},
        {255, 4, 255, 255, 255, 5, 255, 255, 255, 6, 255, 255, 255, 7, 255, 255},
        {255, 8, 255, 255, 255, 9, 255, 255, 255, 10, 255, 255, 255, 11, 255, 255},
        {255, 12, 255, 255, 255, 13, 255, 255, 255, 14, 255, 255, 255, 15, 255, 255},
    };
    const Kind k = kind_of(kind);
    if (k.inputs != 256) return four_halves(from + 8 * q);
    uint8x16_t found = four_at(number);
    __asm__("tbx %0.16b, {%1.16b}, %2.16b" : "+w"(found) : "w"(vld1q_u8(from)), "w"(vld1q_u8(places[q])));
    return vsubq_f32(vreinterpretq_f32_u8(found), vdupq_n_f32(k.lows ? 32768.0f : 32896.0f));
}

/* sums += lows times a fourth of what a block of inputs adds up to: all four together, by lane 0 or 1. */
#define ADD_LOWS(SUM, LOWS, IN, LANE) __asm__("sdot %0.4s, %1.16b, %2.4b[" #LANE "]" : "+w"(SUM) : "w"(LOWS), "w"(IN))

/* What lows add to the block, [rows][quads]. */
INLINE void block_lows(Chunk chunk, int kind, const Inputs *x, int size, int rows, int quads, int first, float32x4_t *least) {
    static const int32_t none[4] = {COUNTED / 128, COUNTED / 128, COUNTED / 128, COUNTED / 128};
    if (kind_of(kind).inputs == 256) {
        int32x4_t sums[CODE_ROWS * 2];
        int8x16_t in[CODE_ROWS], lows[4];
        EACH_QUAD lows[q] = vreinterpretq_s8_u8(vld1q_u8(chunk.lows + 16 * (first + q)));
        EACH_ROW in[r] = vcombine_s8(vld1_s8(x[r].low), vdup_n_s8(0)); /* `high` lies behind `low` */
        EACH_ROW EACH_QUAD {
            sums[r * quads + q] = vreinterpretq_s32_u8(four_at(none));
            ADD_LOWS(sums[r * quads + q], lows[q], in[r], 1);
        }
        EACH_ROW EACH_QUAD sums[r * quads + q] = vshlq_n_s32(sums[r * quads + q], 7);
        EACH_ROW EACH_QUAD ADD_LOWS(sums[r * quads + q], lows[q], in[r], 0);
        EACH_ROW EACH_QUAD least[r * quads + q] = counted(sums[r * quads + q]);
        return;
    }
    EACH_ROW EACH_QUAD least[r * quads + q] = vdupq_n_f32(0.0f);
    for (int start = 0, p = 0; start < size; start += 32, p++) {
        const uint8_t *lows = chunk.spans + p / 2 * span_bytes(kind) + code_bytes(kind) + 2 * (2 + p % 2) * PANEL;
        EACH_QUAD {
            const float32x4_t low = four_halves(lows + 8 * (first + q));
            EACH_ROW fused_to(&least[r * quads + q], low, vdupq_n_f32((float)part_sum(x + r, p, 32)));
        }
    }
}

/* `rows` (constant, at most CODE_ROWS) rows of `size` inputs of a chunk of this kind (constant), added to out[r * PANEL_PAIR].
 * What can be done side by side is written so: the CPU looks but a few dozen instructions ahead. */
INLINE void tile_codes(Chunk chunk, int kind, const Inputs *x, int size, int rows, float *out) {
    static const int32_t nothing[4] = {COUNTED, COUNTED, COUNTED, COUNTED};
    const Kind k = kind_of(kind);
    const int quads = rows <= 2 ? 4 : 2, parts = SPAN / k.part, large = k.inputs == 256, wide = large ? 1 : 2;
    for (int first = 0; first < PANEL / 4; first += quads) {
        float32x4_t steps[CODE_ROWS * 2], least[CODE_ROWS * 2]; /* [rows][quads] */
        EACH_ROW EACH_QUAD steps[r * quads + q] = vdupq_n_f32(0.0f);
        for (int start = 0; start < size; start += SPAN) {
            const uint8_t *span = chunk.spans + start / SPAN * span_bytes(kind), *scales = span + code_bytes(kind);
            UNROLL for (int part = 0; part < parts; part++) {
                int32x4_t sums[8];
                EACH_ROW EACH_QUAD
                    sums[r * quads + q] = vreinterpretq_s32_u8(
                        four_at(k.lows ? x[r].begins[start / k.part + part] : nothing));
                add_codes(span + 16 * first, k.bits, part, x->values + start + part * k.part, rows, sums);
                EACH_QUAD {
                    const float32x4_t step = four_steps(scales + part * PANEL * wide, kind, first + q);
                    EACH_ROW fused_to(&steps[r * quads + q], counted(sums[r * quads + q]), step);
                }
            }
        }
        if (k.lows) block_lows(chunk, kind, x, size, rows, quads, first, least);
        EACH_QUAD {
            float32x4_t unit = vdupq_n_f32(1.0f / (float)(1 << (8 - k.bits)));
            if (large) unit = vmulq_f32(unit, four_halves(chunk.scales + 8 * (first + q)));
            EACH_ROW steps[r * quads + q] = vmulq_f32(steps[r * quads + q], unit);
        }
        if (k.lows) EACH_QUAD {
                float32x4_t unit = vdupq_n_f32(1.0f);
                if (large) unit = vnegq_f32(four_halves(chunk.scales + 2 * PANEL + 8 * (first + q)));
                EACH_ROW fused_to(&steps[r * quads + q], least[r * quads + q], unit);
            }
        EACH_ROW {
            float *total = out + r * PANEL_PAIR + 4 * first;
            const float32x4_t scale = vdupq_n_f32(x[r].scale);
            EACH_QUAD {
                float32x4_t sum = vld1q_f32(total + 4 * q);
                fused_to(&sum, steps[r * quads + q], scale);
                vst1q_f32(total + 4 * q, sum);
            }
        }
    }
}

/* `rows` rows, from row `row` on, against a panel of this kind: both constant. */
INLINE void tiles_codes(const uint8_t *panel, int kind, const Rounded *x, int row, int depth, int rows, float *out) {
    UNROLL for (int r = 0; r < rows; r++) *(v16 *)(out + r * PANEL_PAIR) = splat(0.0f);
    const Inputs *coarse = x->coarse + row, *fine = x->fine + row;
    for (int start = 0, block = 0; start < depth; start += BLOCK, block++, coarse += x->rows, fine += x->rows) {
        const Chunk chunk = chunk_at(panel, kind, block);
        const int size = kind_of(kind).inputs == 256 ? BLOCK : block_size(depth, start);
        tile_codes(chunk, kind, coarse, size, rows, out);
        if (!all_zeros(fine, rows)) tile_codes(chunk, kind, fine, size, rows, out);
    }
}

/* All rows against a panel. */
static void panel_stored(const uint8_t *panel, int kind, const Rounded *x, int depth, float *out) {
#define ROWS(KIND, COUNT) \
    case COUNT: tiles_codes(panel, KIND, x, r, depth, COUNT, out + r * PANEL_PAIR); break;
#define STORED(KIND)                                                                                      \
    case KIND:                                                                                            \
        for (int r = 0, count; r < x->rows; r += count)                                                   \
            switch (count = rows_at_once(x->rows - r, CODE_ROWS)) {                                       \
                ROWS(KIND, 1)                                                                             \
                ROWS(KIND, 2)                                                                             \
                ROWS(KIND, 3)                                                                             \
                ROWS(KIND, 4)                                                                             \
            }                                                                                             \
        break;
    switch (kind) {
        STORED(STORED_Q8_0)
        STORED(STORED_Q4_0)
        STORED(STORED_Q4_1)
        STORED(STORED_Q5_0)
        STORED(STORED_Q5_1)
        STORED(STORED_Q4_K)
        STORED(STORED_Q5_K)
        STORED(STORED_Q6_K)
    }
#undef STORED
#undef ROWS
}

#endif
