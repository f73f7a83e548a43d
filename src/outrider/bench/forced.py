"""Synthetic acceptance for steps taken on the device; benchmarks only, see `synthetic.py`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from outrider.bench.synthetic import SyntheticAcceptance
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.graphs import Staging, bucket
from outrider.models.cuda.steps import MAX_LENGTH, TARGET_SLOT, DeviceStepper, advance
from outrider.sampling.chance import KeyedChance


@triton.jit
def forced_accept_kernel(
    state_ptr,  # as `accept_kernel` of models/cuda/steps.py
    drafts_ptr,
    chosen_ptr,
    out_ptr,
    forced_ptr,  # int32 [lanes]: how many drafts to accept
    spare,
    LENGTH: tl.constexpr,
    LONGEST: tl.constexpr,
    WIDTH: tl.constexpr,
):
    lane = tl.program_id(0)
    i = tl.arange(0, WIDTH)
    chosen = tl.load(chosen_ptr + lane * (LENGTH + 1) + i, mask=i <= LENGTH, other=-1)
    draft = tl.load(drafts_ptr + lane * LONGEST + i, mask=i < LENGTH, other=-2)
    accepted = tl.minimum(tl.load(forced_ptr + lane), LENGTH)
    gained = tl.where(i < accepted, draft, chosen)
    advance(state_ptr + lane * 6, gained, i, accepted, spare)
    out = out_ptr + lane * (2 * LONGEST + 2)
    tl.store(out, accepted)
    tl.store(out + 1 + i, gained, mask=i <= LENGTH)
    tl.store(out + 2 + LONGEST + i, draft, mask=i < LENGTH)


class ForcedStepper(DeviceStepper):
    """Accepts as `SyntheticAcceptance` says. What it writes is not the target's text."""

    lossless = False

    def __init__(self, target: CudaDecoder, draft: CudaDecoder, acceptance: SyntheticAcceptance, seed: int = 0) -> None:
        super().__init__(target, draft, target.vocab_size)
        self._acceptance, self._seed, self._step = acceptance, seed, 0
        lanes = bucket(target.max_batch)
        self._forced = torch.zeros(lanes, dtype=torch.int32, device=target.device)
        self._sending = [Staging(lanes, target.device) for _ in range(4)]

    def launch(self, length: int) -> None:
        sending = self._sending.pop(0)
        self._sending.append(sending)
        counts = [self._acceptance.accepted(KeyedChance(self._seed, i, self._step)) for i in range(len(self._forced))]
        sending.free()[:] = torch.tensor(counts, dtype=torch.int32)
        sending.send(self._forced)
        self._step += 1
        super().launch(length)

    def _accept(self, lanes: int, length: int) -> None:
        forced_accept_kernel[(lanes,)](
            self._state,
            self._drafts,
            self._chosen,
            self._out,
            self._forced,
            self._spare[TARGET_SLOT],
            LENGTH=length,
            LONGEST=MAX_LENGTH,
            WIDTH=bucket(length + 1),
            num_warps=1,
        )
