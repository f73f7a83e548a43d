"""The state of a chain step: rows from it, and the verdict back into it.

A lane is one record of STRIDE int32 (`lanes.Lanes`), the fields below first. Sizes of a step are no constants here, so
that each kernel is compiled once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.scores import DEPTH, EARLY, LANE, MARKS, MASK, REPORTS
from outrider.models.cuda.kernels.scores import WORDS as SAID

LENGTH = tl.constexpr(0)
GENERATED = tl.constexpr(1)
TARGET_SLOT = tl.constexpr(2)
DRAFT_SLOT = tl.constexpr(3)
GAP = tl.constexpr(4)
ABSORBED = tl.constexpr(5)
KNOWN = tl.constexpr(6)
TOP_K = tl.constexpr(7)
MIN_TOKENS = tl.constexpr(8)
PROCESSED = tl.constexpr(9)
REPORTED = tl.constexpr(10)
GUIDE = tl.constexpr(11)
NUMBERS = tl.constexpr(12)
REJECTS = tl.constexpr(18)
START = tl.constexpr(19)
WORDS = tl.constexpr(20)

UNGUIDED = tl.constexpr(0)
SITS_OUT = tl.constexpr(1)
MASKED = tl.constexpr(2)
"""What GUIDE says: nothing tells the lane what may follow; something must, and has not for this step; it has, and from
here on the number of its first row's mask is added."""


@triton.jit
def _mark(state, marks, lane, depth, real, GUIDED: tl.constexpr):
    """What the scores of rows are processed by that stand after the lane's text and so many drafts. GUIDED: whether the
    lane's masks are theirs, too; a drafter's have none."""
    tl.store(marks + LANE, tl.where(tl.load(state + PROCESSED) > 0, lane, -1) + 0 * depth, mask=real)
    tl.store(marks + DEPTH, tl.maximum(depth, 0), mask=real)
    early = tl.load(state + GENERATED) + depth < tl.load(state + MIN_TOKENS)
    tl.store(marks + EARLY, early.to(tl.int32), mask=real)
    tl.store(marks + REPORTS, tl.load(state + REPORTED) + 0 * depth, mask=real)
    mask = 0 * depth
    if GUIDED:
        guide = tl.load(state + GUIDE)
        mask = tl.where(guide >= MASKED, guide - MASKED + 1 + depth, 0)
    tl.store(marks + MASK, mask, mask=real)


@triton.jit
def choose_by(state, numbers, row_words_ptr, row_numbers_ptr, row, depth, real, AHEAD: tl.constexpr):
    """What tokens are chosen by after the lane's text and so many drafts: the noise of that position, and the numbers
    that are the lane's."""
    key = tl.load(state + GENERATED) - tl.load(state + START) + depth
    key = tl.minimum(tl.maximum(key, 0), AHEAD - 1) + 0 * row
    for word in tl.static_range(2):
        tl.store(row_words_ptr + row * 2 + word, tl.load(state + WORDS + key * 2 + word), mask=real)
    nothing = (0 * row).to(tl.float64)
    for which in tl.static_range(3):
        tl.store(row_numbers_ptr + row * 4 + which, tl.load(numbers + NUMBERS // 2 + which) + nothing, mask=real)
    tl.store(row_numbers_ptr + row * 4 + 3, tl.load(state + TOP_K).to(tl.float64) + nothing, mask=real)


@triton.jit(do_not_specialize=["start", "count", "wanted", "capacity", "spare", "vocab"])
def place_kernel(
    lanes_ptr,  # int32 [lanes, STRIDE]
    numbers_ptr,  # the same as fp64
    text_ptr,  # int32 [lanes, capacity]: the token at each position
    drafts_ptr,  # int32 [lanes, LONGEST]
    tokens_ptr,  # the tables of the pass, int32 [rows] each
    slots_ptr,
    positions_ptr,
    indices_ptr,
    bases_ptr,
    wanted_ptr,
    row_words_ptr,  # int32 [wanted, 2]
    row_numbers_ptr,  # fp64 [wanted, 4]
    row_marks_ptr,  # int32 [wanted, MARKS]
    start,
    count,
    wanted,
    capacity,
    spare,
    vocab,
    SLOT: tl.constexpr,
    HEAD: tl.constexpr,
    LONGEST: tl.constexpr,
    AHEAD: tl.constexpr,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Rows of one lane: `count` tokens from `start` on, counted from its last token (drafts follow it), the last
    `wanted` of which are asked for logits. Those of tokens that are not known here go to the spare slot. A HEAD's stand
    one position before their place in the text, and as many more as it lacks. A draft model that begins before the last
    token has then run all before it."""
    lane = tl.program_id(0)
    i = tl.arange(0, WIDTH)
    real = i < count
    offset = start + i
    state = lanes_ptr + lane * STRIDE
    place = tl.load(state + LENGTH) + offset
    known = place >= tl.load(state + KNOWN)
    written = tl.load(text_ptr + lane * capacity + place, mask=real & known & (offset <= 0), other=0)
    drafted = tl.load(drafts_ptr + lane * LONGEST + offset - 1, mask=real & (offset > 0), other=0)
    position = place
    if HEAD:
        position -= 1 + tl.load(state + GAP)
    elif SLOT == DRAFT_SLOT:
        tl.store(state + ABSORBED, tl.load(state + LENGTH), mask=start < 0)
    known &= position >= 0
    position = tl.maximum(position, 0)
    row = lane * count + i
    # Where nothing was drafted any token does, and a drafter that lacks a token of the text takes another.
    token = tl.where(offset > 0, tl.maximum(drafted, 0), written)
    tl.store(tokens_ptr + row, tl.minimum(token, vocab - 1), mask=real)
    tl.store(slots_ptr + row, tl.where(known, tl.load(state + SLOT), spare), mask=real)
    tl.store(positions_ptr + row, position, mask=real)
    tl.store(indices_ptr + row, position, mask=real)
    tl.store(bases_ptr + row, position + 1, mask=real)
    asked = i - (count - wanted)
    is_asked = real & (asked >= 0)
    at = lane * wanted + asked
    tl.store(wanted_ptr + at, row, mask=is_asked)
    numbers = numbers_ptr + lane * STRIDE // 2
    choose_by(state, numbers, row_words_ptr, row_numbers_ptr, at, offset, is_asked, AHEAD)
    _mark(state, row_marks_ptr + at * MARKS, lane, offset, is_asked, SLOT == TARGET_SLOT)


@triton.jit(do_not_specialize=["count", "leave", "capacity", "spare", "vocab"])
def absorb_kernel(
    lanes_ptr,  # as in `place_kernel`
    numbers_ptr,
    text_ptr,
    tokens_ptr,
    slots_ptr,
    positions_ptr,
    indices_ptr,
    bases_ptr,
    wanted_ptr,
    row_words_ptr,
    row_numbers_ptr,
    row_marks_ptr,
    index_ptr,  # HEAD: int32 [rows]: where each row's features wait
    last_ptr,  # HEAD: int32 [lanes]: the row of the lane's last token, where all is taken
    count,
    leave,
    capacity,
    spare,
    vocab,
    HEAD: tl.constexpr,
    RING: tl.constexpr,
    AHEAD: tl.constexpr,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The next rows of what waits for a drafter, at most `count` per lane and all but the last `leave`: of a HEAD,
    whose row of a token stands where the one before does, and as many more as it lacks; or of a draft model, up to the
    token before the last. Rows beyond go to the spare slot."""
    lane = tl.program_id(0)
    i = tl.arange(0, WIDTH)
    real = i < count
    state = lanes_ptr + lane * STRIDE
    length, absorbed, gap = tl.load(state + LENGTH), tl.load(state + ABSORBED), tl.load(state + GAP)
    taken = tl.maximum(tl.minimum(length - gap - absorbed - leave, count), 0)
    waits = real & (i < taken)
    place = absorbed + gap + i  # of the features; a head's token is the one after
    after = 0
    if HEAD:
        after = 1
    token = tl.load(text_ptr + lane * capacity + place + after, mask=waits, other=0)
    row = lane * count + i
    position = tl.where(waits, absorbed + i, 0)
    tl.store(tokens_ptr + row, tl.minimum(token, vocab - 1), mask=real)
    tl.store(slots_ptr + row, tl.where(waits, tl.load(state + DRAFT_SLOT), spare), mask=real)
    tl.store(positions_ptr + row, position, mask=real)
    tl.store(indices_ptr + row, position, mask=real)
    tl.store(bases_ptr + row, position + 1, mask=real)
    tl.store(state + ABSORBED, absorbed + taken)
    last = lane * count + tl.maximum(taken - 1, 0)
    tl.store(wanted_ptr + lane, last)
    if HEAD:
        tl.store(index_ptr + row, lane * RING + place % RING, mask=real)
        tl.store(last_ptr + lane, last)
    choose_by(state, numbers_ptr + lane * STRIDE // 2, row_words_ptr, row_numbers_ptr, lane, 0, True, AHEAD)
    _mark(state, row_marks_ptr + lane * MARKS, lane, 0, True, False)


@triton.jit(do_not_specialize=["keep"])
def skip_kernel(lanes_ptr, keep, STRIDE: tl.constexpr):
    """A head lacks all that waits for it but the last `keep` tokens."""
    state = lanes_ptr + tl.program_id(0) * STRIDE
    gap = tl.load(state + GAP)
    waits = tl.load(state + LENGTH) - tl.load(state + ABSORBED) - gap
    tl.store(state + GAP, gap + tl.maximum(waits - keep, 0))


@triton.jit(do_not_specialize=["count", "width"])
def wait_kernel(
    lanes_ptr,
    features_ptr,  # [lanes * count, width]
    ring_ptr,  # [lanes, RING, width]
    count,
    width,
    RING: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Keep the features of a step's rows, before the verdict: those of refused drafts are written over by the next."""
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    lane = row // count
    place = (tl.load(lanes_ptr + lane * STRIDE + LENGTH) + row % count) % RING
    features = tl.load(features_ptr + row.to(tl.int64) * width + column, mask=column < width)
    tl.store(ring_ptr + (lane * RING + place).to(tl.int64) * width + column, features, mask=column < width)


@triton.jit(do_not_specialize=["length", "capacity", "spare"])
def accept_kernel(
    lanes_ptr,
    text_ptr,
    drafts_ptr,  # int32 [lanes, LONGEST]
    chosen_ptr,  # int32 [lanes, length + 1]: the target's choices after the last token and after each draft
    accepted_ptr,  # int32 [lanes, length + 1]: of lanes that the rejection rule judges, whether each draft is accepted,
    # and `chosen` is what was drawn where it is not; None: there are none
    out_ptr,  # int32 [lanes, OUT]: how many drafts were accepted, the tokens gained, the drafts; -1: it sat out
    length,
    capacity,
    spare,
    LONGEST: tl.constexpr,
    OUT: tl.constexpr,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The coupled rule on a chain: follow the target's choices for as long as the draft has them; or the first refusal
    of the rejection rule. A draft of -1 is none, and never accepted. A lane that is guided, and was not for this step,
    stays where it is."""
    lane = tl.program_id(0)
    i = tl.arange(0, WIDTH)
    chosen = tl.load(chosen_ptr + lane * (length + 1) + i, mask=i <= length, other=-1)
    draft = tl.load(drafts_ptr + lane * LONGEST + i, mask=i < length, other=-1)
    state = lanes_ptr + lane * STRIDE
    follows = (draft >= 0) & (chosen == draft)
    if accepted_ptr is not None:
        judged = tl.load(accepted_ptr + lane * (length + 1) + i, mask=i < length, other=0) > 0
        follows = tl.where(tl.load(state + REJECTS) > 0, judged, follows)
    accepted = tl.min(tl.where(follows, WIDTH, i), axis=0)
    guide = tl.load(state + GUIDE)
    accepted = tl.where(guide == SITS_OUT, -1, accepted)
    tl.store(state + GUIDE, SITS_OUT, mask=guide >= MASKED)
    advance(state, text_ptr + lane * capacity, chosen, i, accepted, spare)
    out = out_ptr + lane * OUT
    tl.store(out, accepted)
    tl.store(out + 1 + i, chosen, mask=i <= length)
    tl.store(out + 2 + LONGEST + i, draft, mask=i < length)


@triton.jit
def advance(state, text, gained, i, accepted, spare):
    """The lane has `gained[0..accepted]` (where no token could be chosen, any; nothing where that is -1). One that only
    fills up the batch stays where it is."""
    if tl.load(state + TARGET_SLOT) != spare:
        length = tl.load(state + LENGTH)
        tl.store(text + length + 1 + i, tl.maximum(gained, 0), mask=i <= accepted)
        tl.store(state + LENGTH, length + accepted + 1)
        tl.store(state + GENERATED, tl.load(state + GENERATED) + accepted + 1)


@triton.jit(do_not_specialize=["said_stride"])
def count_kernel(
    lanes_ptr,
    out_ptr,  # int32 [lanes, OUT]: as `accept_kernel` left it
    said_ptr,  # int32 [lanes, said_stride]: see `said.Said`
    said_stride,
    OUT: tl.constexpr,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The tokens gained are said once more."""
    lane = tl.program_id(0)
    if tl.load(lanes_ptr + lane * STRIDE + PROCESSED) > 0:
        i = tl.arange(0, WIDTH)
        token = tl.load(out_ptr + lane * OUT + 1 + i, mask=i <= tl.load(out_ptr + lane * OUT), other=-1)
        tl.atomic_add(said_ptr + lane.to(tl.int64) * said_stride + SAID + token, 1, mask=token >= 0)
