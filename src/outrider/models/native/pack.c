/* Rows of a GGUF file as the kernels read them: see stored.h. */
#include "blocks.h"
#include "stored_layout.h"

/* Sixteen columns' codes of four neighbouring inputs at a time: a byte of a word each. */
typedef uint32_t Fours[PANEL];

static uint32_t word(const uint8_t *at) {
    uint32_t four;
    memcpy(&four, at, 4);
    return four;
}

#define EACH_BYTE(x) (0x01010101u * (x))

/* 64 inputs of a column: its codes, as numbers about zero, to the column's words of the span. */
static void pack_codes(const uint8_t *codes, int bits, Fours *to, int column) {
    const uint32_t middle = EACH_BYTE(1u << (bits - 1));
#define CODE(i) (word(codes + 4 * (i)) ^ middle)
    switch (bits) {
        case 4:
            for (int i = 0; i < 8; i++) to[i][column] = CODE(i) | CODE(8 + i) << 4;
            break;
        case 5:
            for (int part = 0; part < 2; part++, codes += 32, to += 5) {
                const uint32_t a = CODE(5), b = CODE(6), c = CODE(7);
                const uint32_t low[5] = {
                    a >> 2 & EACH_BYTE(7),
                    (a & EACH_BYTE(3)) << 1 | (c >> 1 & EACH_BYTE(1)),
                    b >> 2 & EACH_BYTE(7),
                    (b & EACH_BYTE(3)) << 1 | (c & EACH_BYTE(1)),
                    c >> 2 & EACH_BYTE(7),
                };
                for (int i = 0; i < 5; i++) to[i][column] = CODE(i) << 3 | low[i];
            }
            break;
        case 6:
            for (int part = 0; part < 4; part++, codes += 16, to += 3) {
                const uint32_t last = CODE(3);
                for (int i = 0; i < 3; i++) to[i][column] = CODE(i) << 2 | (last >> (4 - 2 * i) & EACH_BYTE(3));
            }
            break;
        default:
            for (int i = 0; i < 16; i++) to[i][column] = CODE(i);
    }
#undef CODE
}

/* A column's numbers. */
static void pack_numbers(const uint8_t *row, int bytes, int inputs, int column, uint8_t *to) {
    for (int i = 0; i < inputs; i++) memcpy(to + (i * PANEL + column) * bytes, row + i * bytes, (size_t)bytes);
}

/* A column of a panel. */
static void pack_column(const uint8_t *row, int kind, int inputs, int column, uint8_t *panel) {
    const Kind k = kind_of(kind);
    if (!k.bits) {
        pack_numbers(row, k.bytes, inputs, column, panel);
        return;
    }
    const int parts = SPAN / k.part;
    uint8_t codes[256];
    for (int start = 0; start < inputs; start += SPAN) {
        const Chunk chunk = chunk_at(panel, kind, start / SPAN / SPANS);
        uint8_t *span = (uint8_t *)chunk.spans + start / SPAN % SPANS * span_bytes(kind), *steps = span + code_bytes(kind);
        if (k.inputs == 32) {
            const int count = inputs - start < SPAN ? 1 : 2;
            memset(codes, 1 << (k.bits - 1), SPAN); /* zeros, where there is no second block */
            for (int i = 0; i < count; i++, row += k.bytes) {
                block_codes(row, kind, codes + 32 * i);
                memcpy(steps + 2 * (i * PANEL + column), row, 2);
                if (k.lows) memcpy(steps + 2 * ((parts + i) * PANEL + column), row + 2, 2);
            }
            pack_codes(codes, k.bits, (Fours *)span, column);
            continue;
        }
        const uint8_t *block = row + start / 256 * k.bytes;
        const int within = start % 256;
        if (!within) block_codes(block, kind, codes);
        pack_codes(codes + within, k.bits, (Fours *)span, column);
        for (int i = 0; i < parts; i++) {
            const int at = within / k.part + i;
            if (k.lows)
                block_part(block, at, steps + i * PANEL + column, (uint8_t *)chunk.lows + 4 * column + at % 4);
            else
                steps[i * PANEL + column] = block[192 + at] ^ 0x80;
        }
        memcpy((uint8_t *)chunk.scales + 2 * column, block + (k.lows ? 0 : 208), 2);
        if (k.lows) memcpy((uint8_t *)chunk.scales + 2 * (PANEL + column), block + 2, 2);
    }
}

/* Bytes of a panel that has so many inputs, padded to `depth`. */
int64_t outrider_panel_bytes(int kind, int depth) { return panel_bytes(kind, depth); }

/* Rows first to last of a strip, `pitch` bytes apart, to its panels, which hold zeros. */
void outrider_pack(const uint8_t *rows, int64_t pitch, int kind, int first, int last, int inputs, int depth, uint8_t *panels) {
    for (int row = first; row < last; row++)
        pack_column(rows + (row - first) * pitch, kind, inputs, row % PANEL,
                    panels + row / PANEL * panel_bytes(kind, depth));
}

/* Whole blocks of a file, so many bytes, as so many numbers; 0, and nothing done, where those do not fit. */
int outrider_widen(const uint8_t *blocks, int64_t bytes, int kind, int64_t count, float *out) {
    const Kind k = kind_of(kind);
    if (bytes % k.bytes || bytes / k.bytes * k.inputs != count) return 0;
    for (int64_t i = 0; i < bytes / k.bytes; i++) row_of(blocks + i * k.bytes, kind, k.inputs, out + i * k.inputs);
    return 1;
}

/* Neighbouring numbers in int8 with one scale; precision.py says which. */
static float quantise_block(const float *block, int count, int8_t *values) {
    int32_t largest = 0;
    for (int i = 0; i < count; i++) { /* of numbers without a sign the bits are in the same order */
        int32_t size;
        memcpy(&size, block + i, 4);
        size &= 0x7fffffff;
        largest = size > largest ? size : largest;
    }
    float scale;
    memcpy(&scale, &largest, 4);
    scale /= 127.0f;
    uint32_t bits;
    memcpy(&bits, &scale, 4);
    bits = (bits + 0xffff) & ~0xffffu; /* rounded up, so that no value passes 127 */
    memcpy(&scale, &bits, 4);
    if (scale == 0.0f) scale = 1.0f; /* of zeros alone */
    for (int i = 0; i < count; i++) {
        const float whole = block[i] / scale + 0x1.8p23f; /* to the nearest, of two the even one, in the last bits */
        uint32_t last;
        memcpy(&last, &whole, 4);
        values[i] = (int8_t)(uint8_t)last;
    }
    return scale;
}

/* Rows of numbers, a scale for every `block` of a row. */
void outrider_quantise(const float *rows, int64_t count, int inputs, int block, int8_t *values, float *scales) {
    for (int64_t row = 0; row < count; row++, rows += inputs, values += inputs)
        for (int start = 0; start < inputs; start += block)
            *scales++ = quantise_block(rows + start, inputs - start < block ? inputs - start : block, values + start);
}

/* Rows of a file, `pitch` bytes apart, in int8 as outrider_quantise has them: a block is a part of 256. */
void outrider_requantise(const uint8_t *rows, int64_t pitch, int kind, int64_t count, int inputs, int block, int8_t *values,
                         float *scales) {
    const Kind k = kind_of(kind);
    float wide[256];
    for (int64_t row = 0; row < count; row++, rows += pitch, values += inputs)
        for (int start = 0; start < inputs; start += 256) {
            const int here = inputs - start < 256 ? inputs - start : 256;
            row_of(rows + start / k.inputs * k.bytes, kind, here, wide);
            for (int i = 0; i < here; i += block)
                *scales++ = quantise_block(wide + i, here - i < block ? here - i : block, values + start + i);
        }
}

/* Some of the words of up to PANEL rows, `pitch` words apart, to a panel. */
static void turn(const uint32_t *rows, int64_t pitch, int count, int words, uint32_t *panel) {
    for (int row = 0; row < count; row++)
        for (int word = 0; word < words; word++) panel[word * PANEL + row] = rows[row * pitch + word];
}

/* Rows of 32-bit words to panels of PANEL rows, word by word; a whole number of panels, which hold zeros where rows are
 * missing. Sixteen words of each row at a time, so that what is read and what is written both stay at hand. */
void outrider_turn(const uint32_t *rows, int64_t count, int words, uint32_t *panels) {
    for (int64_t first = 0; first < count; first += PANEL, panels += (int64_t)words * PANEL)
        for (int start = 0; start < words; start += 16)
            turn(rows + first * words + start, words, count - first < PANEL ? (int)(count - first) : PANEL,
                 words - start < 16 ? words - start : 16, panels + start * PANEL);
}

/* Rows first to last of a file, `pitch` bytes apart, to panels as outrider_turn has them, of which they have every
 * `step`-th; first begins one. Without `scales` as they are, numbers; else in int8 as outrider_requantise has them, with
 * the scales in bf16, [blocks, PANEL] of a panel. What is missing of the panels is zero already. */
void outrider_gather(const uint8_t *rows, int64_t pitch, int kind, int64_t first, int64_t last, int inputs, int depth,
                     int block, int64_t step, uint32_t *panels, uint16_t *scales) {
    const Kind k = kind_of(kind);
    const int bytes = scales ? 1 : k.bytes, part = 256, blocks = (inputs + block - 1) / block;
    const int64_t words = (int64_t)depth * bytes / 4;
    for (; first < last; first += PANEL) {
        const int64_t at = first / PANEL * step;
        const int here = last - first < PANEL ? (int)(last - first) : PANEL;
        for (int start = 0; start < inputs; start += part) {
            const int count = inputs - start < part ? inputs - start : part;
            uint32_t lines[PANEL * 256]; /* numbers of up to 4 bytes */
            const int pace = part * bytes / 4, filled = (count * bytes + 3) / 4;
            if (count * bytes % 4)
                for (int row = 0; row < here; row++) lines[row * pace + filled - 1] = 0;
            for (int row = 0; row < here; row++) {
                const uint8_t *from = rows + row * pitch + (int64_t)start / k.inputs * k.bytes;
                if (!scales) {
                    memcpy(lines + row * pace, from, (size_t)(count * bytes));
                    continue;
                }
                float wide[256];
                row_of(from, kind, count, wide);
                int8_t *values = (int8_t *)(lines + row * pace);
                for (int i = 0; i < count; i += block) {
                    const float scale = quantise_block(wide + i, count - i < block ? count - i : block, values + i);
                    uint32_t bits;
                    memcpy(&bits, &scale, 4);
                    scales[(at * blocks + (start + i) / block) * PANEL + row] = (uint16_t)(bits >> 16);
                }
            }
            turn(lines, pace, here, filled, panels + (at * words + start * bytes / 4) * PANEL);
        }
        rows += PANEL * pitch;
    }
}

/* Rows of codes, `pitch` bytes apart, as the numbers they stand for (packed.py of heads): eight codes in `bits` bytes, the
 * highest bit of each first. */
void outrider_unpack(const uint8_t *codes, int64_t pitch, int64_t rows, int columns, int bits, const float *scales,
                     const float *spread, const float *centre, float *out) {
    const float middle = (float)((1 << bits) - 1) / 2.0f;
    for (int64_t row = 0; row < rows; row++, codes += pitch, out += columns)
        for (int start = 0, at = 0; start < columns; start += 8, at += bits) {
            const int end = columns - start < 8 ? columns : start + 8;
            uint64_t eight = 0;
            for (int i = 0; i < bits; i++) eight = eight << 8 | (at + i < pitch ? codes[at + i] : 0);
            for (int i = start; i < end; i++) {
                const int code = (int)(eight >> bits * (7 - (i - start))) & ((1 << bits) - 1);
                out[i] = centre[i] + spread[i] * scales[row] * ((float)code - middle);
            }
        }
}
