"""Synthetic acceptance for steps taken on the device; benchmarks only, see `synthetic.py`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.bench.forced_kernel import forced_accept_kernel
from outrider.bench.synthetic import SyntheticAcceptance
from outrider.core.step import Manner, StepShape, step_width
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.graphs import oldest
from outrider.models.cuda.head import CudaHead
from outrider.models.cuda.lanes import MAX_LENGTH, OUT, STRIDE, WIDTH
from outrider.models.cuda.stepper import DeviceStepper
from outrider.sampling.random_source import KeyedRandom


class ForcedStepper(DeviceStepper):
    """Accepts as `SyntheticAcceptance` says. What it writes is not the target's text."""

    lossless = False

    def __init__(
        self, target: CudaDecoder, draft: CudaDecoder | CudaHead, acceptance: SyntheticAcceptance, vocab_size: int
    ) -> None:
        super().__init__(target, draft, vocab_size)
        self._acceptance, self._step = acceptance, 0
        self._forced = torch.zeros(step_width(target.max_batch), dtype=torch.int32, device=target.device)

    def _run(self, lanes: int, shape: StepShape, manner: Manner, has_run: Sequence[int]) -> None:
        sending = oldest(self._sending)
        counts = [self._acceptance.accepted(KeyedRandom(0, i, self._step)) for i in range(len(self._forced))]
        sending.free()[:] = torch.tensor(counts, dtype=torch.int32)
        sending.send(self._forced)
        self._step += 1
        super()._run(lanes, shape, manner, has_run)

    def _accept(self, lanes: int, length: int, manner: Manner) -> None:
        forced_accept_kernel[(lanes,)](
            self._board.records,
            self._board.text,
            self._board.drafts,
            self._chosen,
            self._board.out,
            self._forced,
            length,
            self._board.capacity,
            self._board.target_spare,
            LONGEST=MAX_LENGTH,
            OUT=OUT,
            STRIDE=STRIDE,
            WIDTH=WIDTH,
            num_warps=1,
        )
