"""What the rejection rule (`rejection.py`) is to do with each row of a step, and the random numbers it does it by."""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.scores import noise_word
from outrider.models.cuda.kernels.steps import GENERATED, REJECTS, START, WORDS

JUDGED = tl.constexpr(0)
TOKEN = tl.constexpr(1)
SOURCE = tl.constexpr(2)
RULE = tl.constexpr(3)
"""A row's rule: whether it is judged at all; the draft that it judges, -1: none; the row of shares that was drawn from,
-1: it was not drawn."""

DRAFT = tl.constexpr(0)
ACCEPT = tl.constexpr(1)
TARGET = tl.constexpr(2)
STREAMS = tl.constexpr(3)
"""As `draw_number` of sampling/random_source.py."""


@triton.jit
def _uniform(words, node, STREAM: tl.constexpr):
    """As `uniform` of sampling/noise.py."""
    number = 2 * (STREAMS * (node + 1) + STREAM)
    low = noise_word(words, number + 1) >> 11
    return noise_word(words, number).to(tl.float64) * 2.0**-32 + low.to(tl.float64) * 2.0**-53


@triton.jit(do_not_specialize=["depth", "count"])
def deal_kernel(
    lanes_ptr,  # int32 [lanes, STRIDE]
    drafts_ptr,  # int32 [lanes, LONGEST]
    out_ptr,  # int32 [lanes, OUT]: the last says whether the drafts were offered
    rules_ptr,  # int32 [lanes * count, RULE]
    uniforms_ptr,  # fp64 [lanes * count, 2]: what acceptance is decided by, and what is drawn by
    depth,
    count,
    DRAWS: tl.constexpr,
    LONGEST: tl.constexpr,
    OUT: tl.constexpr,
    AHEAD: tl.constexpr,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Of a lane's rows, one after its text and after each draft; or, where it DRAWS one, of the row `depth` levels
    down. All of a step's draws are keyed by where it began. What lies beyond a request's last token but one is not
    judged, as the host would not have drafted it."""
    lane = tl.program_id(0)
    i = tl.arange(0, WIDTH)
    real = i < count
    state = lanes_ptr + lane * STRIDE
    rejects, generated = tl.load(state + REJECTS), tl.load(state + GENERATED)
    key = tl.minimum(tl.maximum(generated - tl.load(state + START), 0), AHEAD - 1)
    words = state + WORDS + key * 2
    row = lane * count + i
    if DRAWS:
        token = 0 * i - 1
        source = 0 * i - 1
        drawn = _uniform(words, depth + 0 * i, DRAFT)
    else:
        judged = (i < count - 1) & (i < rejects - generated - 1)
        token = tl.load(drafts_ptr + lane * LONGEST + i, mask=judged, other=-1)
        offered = tl.load(out_ptr + lane * OUT + OUT - 1) > 0
        source = tl.where(offered, -1, i * tl.num_programs(0) + lane)
        drawn = _uniform(words, i - 1, TARGET)
    tl.store(rules_ptr + row * RULE + JUDGED, (rejects > 0).to(tl.int32) + 0 * i, mask=real)
    tl.store(rules_ptr + row * RULE + TOKEN, token, mask=real)
    tl.store(rules_ptr + row * RULE + SOURCE, source, mask=real)
    tl.store(uniforms_ptr + row * 2, _uniform(words, i, ACCEPT), mask=real)
    tl.store(uniforms_ptr + row * 2 + 1, drawn, mask=real)
