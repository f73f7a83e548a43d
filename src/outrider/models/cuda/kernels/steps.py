"""The state of a chain step: rows from it, and the verdict back into it.

A lane's state is seven int32: its last token, the one before, tokens in the cache, tokens generated, its cache slots in
the target and in the draft model or head, and how many rows a head's cache lacks.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def place_kernel(
    state_ptr,  # int32 [lanes, FIELDS]
    drafts_ptr,  # int32 [lanes, LONGEST]
    words_ptr,  # int32 [lanes, AHEAD, 2]
    temperatures_ptr,  # fp64 [lanes]
    starts_ptr,  # int32 [lanes]: the generated position of words[0]
    tokens_ptr,  # the tables of the pass, int32 [rows] each
    slots_ptr,
    positions_ptr,
    indices_ptr,
    bases_ptr,
    wanted_ptr,
    row_words_ptr,  # int32 [wanted, 2]
    row_temperatures_ptr,  # fp64 [wanted]
    spare,
    START: tl.constexpr,
    COUNT: tl.constexpr,
    WANTED: tl.constexpr,
    SLOT_FIELD: tl.constexpr,
    LONGEST: tl.constexpr,
    AHEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    HEAD: tl.constexpr,
):
    """Rows of one lane: the COUNT tokens from START on, counted from its last token (drafts follow it), the last WANTED
    of which are asked for logits. A HEAD's stand one position before their place in the text, and as many more as it
    lacks."""
    lane = tl.program_id(0)
    i = tl.arange(0, WIDTH)
    real = i < COUNT
    offset = START + i
    state = state_ptr + lane * 7
    length = tl.load(state + 2)
    drafted = tl.load(drafts_ptr + lane * LONGEST + offset - 1, mask=real & (offset > 0), other=0)
    token = tl.where(offset == 0, tl.load(state), tl.where(offset < 0, tl.load(state + 1), drafted))
    position = length + offset
    if HEAD:
        position -= 1 + tl.load(state + 6)
    before = position < 0  # there is no token before the first: let the row go to the spare slot
    position = tl.maximum(position, 0)
    row = lane * COUNT + i
    tl.store(tokens_ptr + row, token, mask=real)
    tl.store(slots_ptr + row, tl.where(before, spare, tl.load(state + SLOT_FIELD)), mask=real)
    tl.store(positions_ptr + row, position, mask=real)
    tl.store(indices_ptr + row, position, mask=real)
    tl.store(bases_ptr + row, position + 1, mask=real)
    u = i - (COUNT - WANTED)
    asked = real & (u >= 0)
    tl.store(wanted_ptr + lane * WANTED + u, row, mask=asked)
    key = tl.load(state + 3) - tl.load(starts_ptr + lane) + offset
    key = tl.minimum(tl.maximum(key, 0), AHEAD - 1)
    for word in tl.static_range(2):
        value = tl.load(words_ptr + (lane * AHEAD + key) * 2 + word, mask=asked, other=0)
        tl.store(row_words_ptr + (lane * WANTED + u) * 2 + word, value, mask=asked)
    temperature = tl.load(temperatures_ptr + lane) + tl.zeros([WIDTH], dtype=tl.float64)
    tl.store(row_temperatures_ptr + lane * WANTED + u, temperature, mask=asked)


@triton.jit
def absorb_kernel(
    state_ptr,  # int32 [lanes, FIELDS]
    out_ptr,  # int32 [lanes, 2 LONGEST + 2]: as `accept_kernel` left it
    words_ptr,  # as in `place_kernel`, from here on
    temperatures_ptr,
    starts_ptr,
    tokens_ptr,
    slots_ptr,
    positions_ptr,
    indices_ptr,
    bases_ptr,
    wanted_ptr,
    row_words_ptr,
    row_temperatures_ptr,
    last_ptr,  # int32 [lanes]: the row of the lane's last token
    spare,
    COUNT: tl.constexpr,
    SLOT_FIELD: tl.constexpr,
    LONGEST: tl.constexpr,
    AHEAD: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """A head's rows for what the last step gained, one per row the target verified, so that their number is fixed:
    those beyond the gained tokens lie behind the last of them, where the next rows are written over them."""
    lane = tl.program_id(0)
    i = tl.arange(0, WIDTH)
    real = i < COUNT
    state = state_ptr + lane * 7
    out = out_ptr + lane * (2 * LONGEST + 2)
    accepted = tl.load(out)
    token = tl.load(out + 1 + i, mask=real, other=0)
    # A head's row stands where the token before it does, if it lacks none.
    position = tl.load(state + 2) - 1 - tl.load(state + 6) - accepted + i
    before = position < 0  # nothing was before the first token: let the row go to the spare slot
    position = tl.maximum(position, 0)
    row = lane * COUNT + i
    tl.store(tokens_ptr + row, token, mask=real)
    tl.store(slots_ptr + row, tl.where(before, spare, tl.load(state + SLOT_FIELD)), mask=real)
    tl.store(positions_ptr + row, position, mask=real)
    tl.store(indices_ptr + row, position, mask=real)
    tl.store(bases_ptr + row, position + 1, mask=real)
    tl.store(wanted_ptr + lane, lane * COUNT + accepted)
    tl.store(last_ptr + lane, lane * COUNT + accepted)
    key = tl.load(state + 3) - tl.load(starts_ptr + lane)
    key = tl.minimum(tl.maximum(key, 0), AHEAD - 1)
    for word in tl.static_range(2):
        tl.store(row_words_ptr + lane * 2 + word, tl.load(words_ptr + (lane * AHEAD + key) * 2 + word))
    tl.store(row_temperatures_ptr + lane, tl.load(temperatures_ptr + lane))


@triton.jit
def accept_kernel(
    state_ptr,  # int32 [lanes, FIELDS]
    drafts_ptr,  # int32 [lanes, LONGEST]
    chosen_ptr,  # int32 [lanes, LENGTH + 1]: the target's choices after the last token and after each draft
    out_ptr,  # int32 [lanes, 2 LONGEST + 2]: how many drafts were accepted, the tokens gained, the drafts
    spare,
    LENGTH: tl.constexpr,
    LONGEST: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The coupled rule on a chain: follow the target's choices for as long as the draft has them."""
    lane = tl.program_id(0)
    i = tl.arange(0, WIDTH)
    chosen = tl.load(chosen_ptr + lane * (LENGTH + 1) + i, mask=i <= LENGTH, other=-1)
    draft = tl.load(drafts_ptr + lane * LONGEST + i, mask=i < LENGTH, other=-2)
    accepted = tl.min(tl.where((i < LENGTH) & (chosen == draft), WIDTH, i), axis=0)
    advance(state_ptr + lane * 7, chosen, i, accepted, spare)
    out = out_ptr + lane * (2 * LONGEST + 2)
    tl.store(out, accepted)
    tl.store(out + 1 + i, chosen, mask=i <= LENGTH)
    tl.store(out + 2 + LONGEST + i, draft, mask=i < LENGTH)


@triton.jit
def advance(state, gained, i, accepted, spare):
    """The lane has `gained[0..accepted]`. A lane that only fills up the batch stays where it is."""
    last, length, generated, slot = tl.load(state), tl.load(state + 2), tl.load(state + 3), tl.load(state + 4)
    if slot != spare:
        before = tl.sum(tl.where(i == accepted - 1, gained, 0), axis=0)
        tl.store(state, tl.sum(tl.where(i == accepted, gained, 0), axis=0))
        tl.store(state + 1, tl.where(accepted > 0, before, last))
        tl.store(state + 2, length + accepted + 1)
        tl.store(state + 3, generated + accepted + 1)
