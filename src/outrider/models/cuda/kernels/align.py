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
SINCE = tl.constexpr(5)
NEXT = tl.constexpr(6)
TOKENS = tl.constexpr(7)


@triton.jit
def _taken(offer, state, text, guided, i):
    """Whether an entry has the tokens which came since it was made, and goes on from there."""
    start, count, since = tl.load(offer + START), tl.load(offer + COUNT), tl.load(offer + SINCE)
    behind = tl.load(state + LENGTH) + 1 - start
    known = (i < behind) & (i < count)
    promised = tl.load(offer + TOKENS + i, mask=known, other=0)
    came = tl.load(text + start + i, mask=known, other=0)
    holds = tl.max((promised != came).to(tl.int32), axis=0) == 0
    reach = tl.where(guided, since + tl.load(offer + MASKS), count)
    return (behind >= since) & (behind < reach) & holds


@triton.jit(do_not_specialize=["length", "capacity"])
def align_kernel(
    lanes_ptr,  # int32 [lanes, STRIDE]
    text_ptr,  # int32 [lanes, capacity]: the token at each position
    offers_ptr,  # int32 [entries, TOKENS + OFFERED], the lanes' first: see `offers.Offers`
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
    follow the first SINCE of its tokens, and one more for each token after them. It may have several, one after the
    other (NEXT), of which the first counts that its text has followed; where it has followed none, it sits out."""
    lane = tl.program_id(0)
    i = tl.arange(0, WIDTH)
    offer = offers_ptr + lane * (TOKENS + OFFERED)
    state, text = lanes_ptr + lane * STRIDE, text_ptr + lane * capacity
    guided = tl.load(state + GUIDE) != UNGUIDED
    taken = _taken(offer, state, text, guided, i)
    other = tl.load(offer + NEXT)
    while (taken == 0) & (other > 0):
        offer = offers_ptr + other * (TOKENS + OFFERED)
        taken = _taken(offer, state, text, guided, i)
        other = tl.load(offer + NEXT)
    since = tl.load(offer + SINCE)
    behind = tl.load(state + LENGTH) + 1 - tl.load(offer + START)
    place = behind + i
    reach = tl.where(guided, since + tl.load(offer + MASKS) - 1, tl.load(offer + COUNT))
    rest = tl.load(offer + TOKENS + place, mask=(place >= 0) & (place < reach), other=-1)
    drafts = drafts_ptr + lane * LONGEST + i
    levels = tl.where(guided, 0, tl.minimum(tl.load(offer + DRAFTED), length))
    own = tl.load(drafts, mask=i < levels, other=-1)
    tl.store(drafts, tl.where(taken, rest, own), mask=i < length)
    tl.store(out_ptr + lane * OUT + OUT - 1, taken.to(tl.int32))
    first = MASKED + tl.load(offer + MASK) + behind - since
    tl.store(state + GUIDE, tl.where(taken, first, SITS_OUT), mask=guided)
