"""Weights of 8 bits, widened where they are multiplied: exactly, and without an instruction that only some GPUs have.

They lie in words of four, which are a quarter of a group apart (`words.arranged`): so the words that a thread needs for
one product of matrices serve four, and the depth is still added up in order.

e4m3 is a sign, four bits of exponent, three of fraction. Put where a wider format has its own, they are the same number
but for the bias of the exponent, subnormal ones and zero included; a product with a power of two puts that right. (A
byte that is no number becomes 480; weights that hold one are not loaded.) int8 are whole numbers. Behind the exponent
of 128 the lower seven bits are 128 more than they are, and what has to be taken away is 128 or, below zero, 256.
"""

from __future__ import annotations

import triton
import triton.language as tl

_E4M3 = """{
.reg .b32 two, power, nothing;
prmt.b32 two, $1, $2, SELECTED;  // a byte of each word, and its sign all over the byte above
shl.b32 two, two, 4;
and.b32 two, two, 0x87f087f0;
mov.b32 power, 0x7b807b80;  // 2^120, twice
mov.b32 nothing, 0x80008000;  // -0, twice: the only number that leaves every product as it is
fma.rn.bf16x2 $0, two, power, nothing;
}"""
_INT8 = """{
.reg .b32 two, more, minus;
prmt.b32 two, $1, $2, SELECTED;
lop3.b32 more, two, 0x00800080, 0x43004300, 0xea;  // 128, or 256 below zero
lop3.b32 two, two, 0x007f007f, 0x43004300, 0xea;
mov.b32 minus, 0xbf80bf80;
fma.rn.bf16x2 $0, more, minus, two;
}"""
OF_E4M3 = [_E4M3.replace("SELECTED", hex(0xC480 + 0x1111 * i)) for i in range(4)]
_OF_E4M3 = tl.constexpr(OF_E4M3)
OF_INT8 = [_INT8.replace("SELECTED", hex(0x4400 + 0x1111 * i)) for i in range(4)]
_OF_INT8 = tl.constexpr(OF_INT8)


@triton.jit
def widened(words, like, PART: tl.constexpr, INTEGERS: tl.constexpr, PACKED: tl.constexpr):
    """Byte PART of every word as the type of `like`, bf16 or fp16; what is no word as it is. PACKED (bf16 alone): two
    at once, by hand, in four instructions; the compiler takes each by itself, in several times as many."""
    if words.dtype == tl.int32:
        if PACKED:
            CODE: tl.constexpr = _OF_INT8[PART] if INTEGERS else _OF_E4M3[PART]
            words = tl.inline_asm_elementwise(CODE, "=r,r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2)
        else:
            byte = (words >> (8 * PART)) & 0xFF
            if INTEGERS:
                wide = ((byte ^ 0x80) - 0x80).to(tl.float32)
            else:
                wide = (((byte & 0x80) << 24) | ((byte & 0x7F) << 20)).to(tl.float32, bitcast=True) * 2.0**120
            words = wide.to(like.dtype)
    return words
