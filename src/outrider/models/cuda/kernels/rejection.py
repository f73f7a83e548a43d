"""The rejection rule on chains, and the drafts drawn for it: as verify/rejection.py, in shares (sampling/shares.py).

A share is an integer here, its fraction times 2^52: sums are exact in any order, and quotients and products with a
uniform number are rounded once, to the host's own. Each row is judged as if the chain had been followed up to it; which
one it ends at is for `accept_kernel` to say. Rows of other lanes are left alone: a row's rule says so (`deal.py`).

Which tokens top-p leaves must be known here before any is drawn: all that weigh no less than the lightest one needed,
whose mass is found from its highest bits down (`edge_kernel`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.deal import JUDGED, RULE, SOURCE, TOKEN
from outrider.models.cuda.kernels.nucleus import has_nucleus, masses, needed
from outrider.models.cuda.kernels.scores import row_peak, row_sum, score_at, scores, token_of

WHOLE = tl.constexpr(2.0**52)

TURNS = tl.constexpr(13)
_DIGITS = tl.constexpr(16)
_HIGHEST = tl.constexpr(48)
_MOST = tl.constexpr(2**52 - 1)
"""Four bits of a mass are found in every turn, from these down. There are 52: what has all of a row counts as one
less, which nothing else weighs."""


@triton.jit
def _one(turn):
    """What the digit of a turn counts."""
    return tl.full([], 1, tl.int64) << (_HIGHEST - 4 * turn)


@triton.jit(do_not_specialize=["blocks"])
def row_kernel(
    found,  # of the rows, by `Chooser`: peaks, limit, weight, mass
    numbers_ptr,
    rules_ptr,
    rows_ptr,  # fp64 [rows, 2]: the largest score, and the weight of all that top-k leaves
    needs_ptr,  # int64 [rows]: the mass that top-p asks for; 0: there is no top-p
    blocks,
    BLOCKS: tl.constexpr,
):
    row = tl.program_id(0)
    if tl.load(rules_ptr + row * RULE + JUDGED) > 0:
        peaks_ptr, _, weight_ptr, mass_ptr = found
        peak = row_peak(peaks_ptr, row, blocks, BLOCKS)
        weight = tl.full([], 1, tl.float64)
        need = tl.full([], 0, tl.int64)
        if has_nucleus(numbers_ptr, peak, row):
            weight = row_sum(weight_ptr, row, blocks, BLOCKS)
            need = needed(row_sum(mass_ptr, row, blocks, BLOCKS), tl.load(numbers_ptr + row * 4 + 1))
        tl.store(rows_ptr + row * 2, peak)
        tl.store(rows_ptr + row * 2 + 1, weight)
        tl.store(needs_ptr + row, need)


@triton.jit
def _known(edges, row, rows, turn):
    """Of the lightest mass needed: what was found before `turn`, and what all together have that weigh more than it can
    still turn out to be."""
    bases_ptr, above_ptr, sums_ptr, needs_ptr = edges
    base = tl.full([], 0, tl.int64)
    above = tl.full([], 0, tl.int64)
    if turn > 0:
        digit = tl.arange(0, _DIGITS)
        at = (turn - 1) * rows + row
        sums = tl.load(sums_ptr + at * _DIGITS + digit)
        above = tl.load(above_ptr + at)
        reached = (above + sums >= tl.load(needs_ptr + row)) & (digit > 0)
        last = tl.sum(reached.to(tl.int64), axis=0)
        base = tl.load(bases_ptr + at) + last * _one(turn - 1)
        above += tl.sum(tl.where(digit == last + 1, sums, 0), axis=0)
    return base, above


@triton.jit(do_not_specialize=["turn", "rows", "stride", "said_stride", "vocab", "blocks"])
def edge_kernel(
    given,  # see `scores`
    found,
    numbers_ptr,
    rules_ptr,
    rows_ptr,
    edges,  # int64 each: [TURNS, rows], what `_known` says, twice; [TURNS, rows, 16], by digits, zeros; the needs
    turn,
    rows,
    stride,
    said_stride,
    vocab,
    blocks,
    LONGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """A turn in which one more digit of the mass is found: for each that it may have, what those have together that
    weigh as much at least, and no more than was known before. In most blocks soon none does."""
    row, block = tl.program_id(0), tl.program_id(1)
    bases_ptr, above_ptr, sums_ptr, needs_ptr = edges
    peaks_ptr, limit_ptr, _, _ = found
    judged = tl.load(rules_ptr + row * RULE + JUDGED) > 0
    if judged & (tl.load(needs_ptr + row, mask=judged, other=0) > 0):
        base, above = _known(edges, row, rows, turn)
        tl.store(bases_ptr + turn * rows + row, base, mask=block == 0)
        tl.store(above_ptr + turn * rows + row, above, mask=block == 0)
        peak, weight = tl.load(rows_ptr + row * 2), tl.load(rows_ptr + row * 2 + 1)
        temperature, limit = tl.load(numbers_ptr + row * 4), tl.load(limit_ptr + row)
        one = _one(turn)
        heaviest = masses((tl.load(peaks_ptr + row * blocks + block) - peak) / temperature, limit, weight)
        if heaviest >= base + one:
            column = block * BLOCK + tl.arange(0, BLOCK)
            score = (scores(given, (stride, said_stride, vocab), row, column, LONGEST) - peak) / temperature
            mass = masses(score, limit, weight)
            level = tl.minimum(mass, _MOST)
            within = (level >= base + one) & (level < base + _DIGITS * one)
            if tl.max(within.to(tl.int32), axis=0) > 0:
                digit = tl.arange(0, _DIGITS)
                reach = within[:, None] & (level[:, None] >= (base + digit * one)[None, :])  # [BLOCK, DIGITS]
                sums = tl.sum(tl.where(reach, mass[:, None], 0), axis=0)
                place = sums_ptr + (turn * rows + row) * _DIGITS + digit
                tl.atomic_add(place, sums, mask=(sums > 0) & (digit > 0), sem="relaxed")


@triton.jit
def _finite(peak):
    """Whether the row's scores are numbers."""
    return (peak > float("-inf")) & (peak < float("inf"))


@triton.jit
def _row_of(found, numbers_ptr, rows_ptr, edges, row, rows):
    """What says which of a row's tokens are left: temperature, peak, limit, floor, edge, weight."""
    _, limit_ptr, _, _ = found
    _, _, _, needs_ptr = edges
    temperature, limit = tl.load(numbers_ptr + row * 4), tl.load(limit_ptr + row)
    peak, weight = tl.load(rows_ptr + row * 2), tl.load(rows_ptr + row * 2 + 1)
    floor = tl.maximum(limit, tl.load(numbers_ptr + row * 4 + 2))
    edge = tl.full([], 0, tl.int64)
    if tl.load(needs_ptr + row) > 0:
        edge, _above = _known(edges, row, rows, TURNS)
    return temperature, peak, limit, floor, edge, weight


@triton.jit
def _left(raw, stats):
    """The heated scores of raw ones; -inf where top-k, top-p or min-p takes the token away."""
    temperature, peak, limit, floor, edge, weight = stats
    score = (raw - peak) / temperature
    kept = score >= floor
    if edge > 0:
        kept &= masses(score, limit, weight) >= edge
    return tl.where(kept, score, float("-inf"))


@triton.jit(do_not_specialize=["rows", "stride", "said_stride", "vocab", "blocks"])
def total_kernel(
    given,
    found,
    numbers_ptr,
    rules_ptr,
    rows_ptr,
    edges,
    totals_ptr,  # fp64 [rows, blocks]: the sum of exponentials of what is left
    rows,
    stride,
    said_stride,
    vocab,
    blocks,
    LONGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    row, block = tl.program_id(0), tl.program_id(1)
    if tl.load(rules_ptr + row * RULE + JUDGED) > 0:
        stats = _row_of(found, numbers_ptr, rows_ptr, edges, row, rows)
        column = block * BLOCK + tl.arange(0, BLOCK)
        raw = scores(given, (stride, said_stride, vocab), row, column, LONGEST)
        tl.store(totals_ptr + row * blocks + block, tl.sum(tl.exp(_left(raw, stats)), axis=0))


@triton.jit
def _share(raw, stats, total):
    return masses(_left(raw, stats), float("-inf"), total)


@triton.jit
def _drafted_share(drawn, token, source, possible):
    """What tokens had where the draft was drawn: q. 0: it was not, or could not be one of them."""
    drawn_ptr, places_ptr, width = drawn
    share = 0 * token.to(tl.int64)
    if drawn_ptr is not None:
        place = token
        if places_ptr is not None:
            place = tl.load(places_ptr + token, mask=possible, other=-1)
        known = possible & (source >= 0) & (place >= 0) & (place < width)
        share = tl.load(drawn_ptr + source.to(tl.int64) * width + place, mask=known, other=0)
    return share


@triton.jit
def odds(p, q):
    """Of a draft's acceptance; above 1: it is certain."""
    quotient = p.to(tl.float64) / tl.maximum(q, 1).to(tl.float64)
    return tl.where(q > 0, quotient, p.to(tl.float64) / WHOLE)


@triton.jit
def residual(share, q, refused):
    """What is left of a token's share where a draft was refused: drawn from `q`, or a point mass, all of which is at
    the token that was `refused`."""
    return tl.where(refused, 0, tl.maximum(share - q, 0))


@triton.jit
def _verdict(given, sizes, drawn, stats, total, rule, uniforms, row, LONGEST: tl.constexpr):
    """The draft of a row, the row it was drawn from (-1: none, a point mass), and whether it is accepted."""
    token, source = tl.load(rule + TOKEN), tl.load(rule + SOURCE)
    accepted = token < 0
    if token >= 0:
        p = _share(score_at(given, sizes, row, token, LONGEST), stats, total)
        q = _drafted_share(drawn, token, source, token >= 0)
        accepted = tl.load(uniforms) < odds(p, q)
        source = tl.where(q > 0, source, -1)
    return token, source, accepted & (token >= 0)


@triton.jit
def _rest(given, sizes, drawn, stats, total, token, source, row, column, LONGEST: tl.constexpr):
    """The shares of these columns, and what is left of them once the row's draft, if any, is refused."""
    _, _, vocab = sizes
    share = _share(scores(given, sizes, row, column, LONGEST), stats, total)
    q = _drafted_share(drawn, column, source, (column < vocab) & (token >= 0))
    return share, residual(share, q, (column == token) & (source < 0))


@triton.jit(do_not_specialize=["rows", "width", "stride", "said_stride", "vocab", "blocks"])
def rest_kernel(
    given,
    found,
    numbers_ptr,
    rules_ptr,
    uniforms_ptr,
    rows_ptr,
    edges,
    totals_ptr,
    drawn,  # of judged drafts: int64 [any, width], their shares; int32 [vocab], the column of a token; or None
    kept_ptr,  # int64 [rows, vocab]: gets the shares, for whoever judges what is drawn here; None: nobody does
    shares_ptr,  # int64 [rows, blocks]: of each block together
    rests_ptr,  # int64 [rows, blocks]: what the refused draft leaves of that
    rows,
    width,
    stride,
    said_stride,
    vocab,
    blocks,
    LONGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    row, block = tl.program_id(0), tl.program_id(1)
    sizes = stride, said_stride, vocab
    rule = rules_ptr + row * RULE
    if tl.load(rule + JUDGED) > 0:
        stats = _row_of(found, numbers_ptr, rows_ptr, edges, row, rows)
        total = row_sum(totals_ptr, row, blocks, BLOCKS)
        drawn_ptr, places_ptr = drawn
        known = drawn_ptr, places_ptr, width
        token, source, accepted = _verdict(
            given, sizes, known, stats, total, rule, uniforms_ptr + row * 2, row, LONGEST
        )
        if accepted == 0:
            column = block * BLOCK + tl.arange(0, BLOCK)
            share, rest = _rest(given, sizes, known, stats, total, token, source, row, column, LONGEST)
            tl.store(shares_ptr + row * blocks + block, tl.sum(share, axis=0))
            tl.store(rests_ptr + row * blocks + block, tl.sum(rest, axis=0))
            if kept_ptr is not None:
                tl.store(kept_ptr + row.to(tl.int64) * vocab + column, share, mask=column < vocab)


@triton.jit
def _beyond(before, share, point, SIZE: tl.constexpr):
    """The first place whose running sum lies beyond the point; where rounding has put that at the end of all, the last
    that has anything."""
    place = tl.arange(0, SIZE)
    running = before + tl.cumsum(share, axis=0)
    first = tl.min(tl.where(running.to(tl.float64) > point, place, SIZE), axis=0)
    return tl.where(first < SIZE, first, tl.max(tl.where(share > 0, place, 0), axis=0))


@triton.jit(do_not_specialize=["rows", "width", "stride", "said_stride", "vocab", "blocks", "chosen_stride"])
def draw_kernel(
    given,
    found,
    numbers_ptr,
    rules_ptr,
    uniforms_ptr,
    rows_ptr,
    edges,
    totals_ptr,
    drawn,
    shares_ptr,
    rests_ptr,
    accepted_ptr,  # int32 [rows]: whether the row's draft is accepted
    chosen_ptr,  # int32, row r at r * chosen_stride: the draft, or what is drawn in its stead; -1: no number
    rows,
    width,
    stride,
    said_stride,
    vocab,
    blocks,
    chosen_stride,
    LONGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """By inverting the running sum, token after token."""
    row = tl.program_id(0)
    _, _, _, _, _, _, ids_ptr = given
    sizes = stride, said_stride, vocab
    rule = rules_ptr + row * RULE
    if tl.load(rule + JUDGED) > 0:
        stats = _row_of(found, numbers_ptr, rows_ptr, edges, row, rows)
        chosen = tl.full([], -1, tl.int32)
        is_accepted = tl.full([], 0, tl.int32)
        if _finite(stats[1]):
            total = row_sum(totals_ptr, row, blocks, BLOCKS)
            drawn_ptr, places_ptr = drawn
            known = drawn_ptr, places_ptr, width
            token, source, accepted = _verdict(
                given, sizes, known, stats, total, rule, uniforms_ptr + row * 2, row, LONGEST
            )
            if accepted:
                chosen = token
                is_accepted = tl.full([], 1, tl.int32)
            else:
                others = tl.arange(0, BLOCKS)
                shares = tl.load(shares_ptr + row * blocks + others, mask=others < blocks, other=0)
                rests = tl.load(rests_ptr + row * blocks + others, mask=others < blocks, other=0)
                some = tl.sum(rests, axis=0) > 0  # else rounding alone has refused it
                each = tl.where(some, rests, shares)
                point = tl.sum(each, axis=0).to(tl.float64) * tl.load(uniforms_ptr + row * 2 + 1)
                block = _beyond(0, each, point, BLOCKS)
                before = tl.sum(tl.where(others < block, each, 0), axis=0)
                column = block * BLOCK + tl.arange(0, BLOCK)
                share, rest = _rest(given, sizes, known, stats, total, token, source, row, column, LONGEST)
                which = _beyond(before, tl.where(some, rest, share), point, BLOCK)
                chosen = token_of(ids_ptr, block * BLOCK + which)
        tl.store(chosen_ptr + row * chosen_stride, chosen)
        tl.store(accepted_ptr + row, is_accepted)
