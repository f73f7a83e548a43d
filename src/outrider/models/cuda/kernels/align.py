"""What the host has offered to a lane, held against what has come since."""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.steps import GUIDE, LENGTH, MASKED, SITS_OUT, UNGUIDED

DRAFTED = tl.constexpr(0)
START = tl.constexpr(1)
COUNT = tl.constexpr(2)
MASKS = tl.constexpr(3)
MASK = tl.constexpr(4)
TOKENS = tl.constexpr(5)


@triton.jit(do_not_specialize=["length", "capacity"])
def align_kernel(
    lanes_ptr,  # int32 [lanes, STRIDE]
    text_ptr,  # int32 [lanes, capacity]: the token at each position
    offers_ptr,  # int32 [lanes, TOKENS + OFFERED]: see `offers.Offers`
    drafts_ptr,  # int32 [lanes, LONGEST]
    out_ptr,  # int32 [lanes, OUT]: the last says whether the offer was taken
    length,
    capacity,
    OFFERED: tl.constexpr,
    LONGEST: tl.constexpr,
    OUT: tl.constexpr,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The lane's drafts are the next `length` tokens of its offer, if that has the tokens which came since it was made;
    else what was drafted here. -1 where neither reaches. Whatever is taken can change the speed alone: every draft is
    verified.

    A lane that is guided verifies nothing but its offer, and of that as much as there are masks for: one for what may
    follow the tokens before START, and one more for each of its tokens. Where its text has gone elsewhere it sits
    out."""
    lane = tl.program_id(0)
    i = tl.arange(0, WIDTH)
    offer = offers_ptr + lane * (TOKENS + OFFERED)
    start, count, masks = tl.load(offer + START), tl.load(offer + COUNT), tl.load(offer + MASKS)
    state = lanes_ptr + lane * STRIDE
    guided = tl.load(state + GUIDE) != UNGUIDED
    behind = tl.load(state + LENGTH) + 1 - start
    known = (i < behind) & (i < count)
    promised = tl.load(offer + TOKENS + i, mask=known, other=0)
    came = tl.load(text_ptr + lane * capacity + start + i, mask=known, other=0)
    holds = tl.max((promised != came).to(tl.int32), axis=0) == 0
    taken = (behind >= 0) & (behind < tl.where(guided, masks, count)) & holds
    place = behind + i
    reach = tl.where(guided, masks - 1, count)
    rest = tl.load(offer + TOKENS + place, mask=(place >= 0) & (place < reach), other=-1)
    drafts = drafts_ptr + lane * LONGEST + i
    levels = tl.where(guided, 0, tl.minimum(tl.load(offer + DRAFTED), length))
    own = tl.load(drafts, mask=i < levels, other=-1)
    tl.store(drafts, tl.where(taken, rest, own), mask=i < length)
    tl.store(out_ptr + lane * OUT + OUT - 1, taken.to(tl.int32))
    tl.store(state + GUIDE, tl.where(taken, MASKED + tl.load(offer + MASK) + behind, SITS_OUT), mask=guided)
