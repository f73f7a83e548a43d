"""The verdict of synthetic acceptance, on the device."""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.steps import advance


@triton.jit(do_not_specialize=["length", "capacity", "spare"])
def forced_accept_kernel(
    lanes_ptr,  # as `accept_kernel` of models/cuda/kernels/steps.py
    text_ptr,
    drafts_ptr,
    chosen_ptr,
    out_ptr,
    forced_ptr,  # int32 [lanes]: how many drafts to accept
    length,
    capacity,
    spare,
    LONGEST: tl.constexpr,
    OUT: tl.constexpr,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    lane = tl.program_id(0)
    i = tl.arange(0, WIDTH)
    chosen = tl.load(chosen_ptr + lane * (length + 1) + i, mask=i <= length, other=-1)
    draft = tl.maximum(tl.load(drafts_ptr + lane * LONGEST + i, mask=i < length, other=0), 0)
    accepted = tl.minimum(tl.load(forced_ptr + lane), length)
    gained = tl.where(i < accepted, draft, chosen)
    advance(lanes_ptr + lane * STRIDE, text_ptr + lane * capacity, gained, i, accepted, spare)
    out = out_ptr + lane * OUT
    tl.store(out, accepted)
    tl.store(out + 1 + i, gained, mask=i <= length)
    tl.store(out + 2 + LONGEST + i, draft, mask=i < length)
