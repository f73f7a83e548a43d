"""The sequences being written, one per lane, as tensors that a recorded step can work on without the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.sampling.noise import hash64
from outrider.train.jobs import Job

_FIELDS = 6  # lane, prompt length, limit, the key's two words, temperature: what `load` sends before the tokens


class WriterLanes:
    """A lane holds tokens 0..position that the target has read or is about to read; beyond them, inside the prompt,
    those still to be read. A lane that has ended stands still until it is loaded again: repeating its last step
    changes nothing.
    """

    def __init__(self, lanes: int, context: int, eos_ids: Sequence[int], seed: int, device: torch.device) -> None:
        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.count, self.context, self.device = lanes, context, device
        self.tokens = integers(lanes, context)
        self.position = integers(lanes)
        """Of the token the next step reads."""
        self.words = integers(lanes, 2)
        """What a lane's noise is keyed by, together with the position."""
        self.temperature = torch.zeros(lanes, dtype=torch.float32, device=device)
        self.ended = integers(lanes) - 1
        """0: running; else the length of the sequence, negative where a limit ended it."""
        self.broken = integers(1)
        """Not 0 once a running lane had no finite score to choose by."""
        self._prompt_length, self._limit = integers(lanes), integers(lanes)
        self._eos = torch.tensor(list(eos_ids), dtype=torch.int32, device=device)
        self._seed = seed
        self._snapshots = [Snapshot(self) for _ in range(2)]

    def clear(self) -> None:
        """Let go of every sequence."""
        self.ended.fill_(-1)
        self.position.zero_()
        self.broken.zero_()

    def load(self, jobs: Sequence[tuple[int, Job]]) -> None:
        """Put each job into its lane, after the steps already launched."""
        if not jobs:
            return
        width = max(len(job.prompt) for _, job in jobs)
        host = torch.zeros(len(jobs), _FIELDS + width, dtype=torch.int32, pin_memory=self.device.type == "cuda")
        sent = host.numpy()
        for row, (lane, job) in zip(sent, jobs, strict=True):
            length = len(job.prompt)
            key = np.uint64(hash64("write", self._seed, job.number))
            row[0], row[1] = lane, length
            row[2] = min(length + job.max_new, self.context)
            row[3:5] = key.reshape(1).view(np.int32)
            row[5:6] = np.array([job.temperature], np.float32).view(np.int32)
            row[_FIELDS : _FIELDS + length] = job.prompt
        rows = host.to(self.device, non_blocking=True)
        at = rows[:, 0].long()
        self._prompt_length[at], self._limit[at] = rows[:, 1], rows[:, 2]
        self.words[at] = rows[:, 3:5]
        self.temperature[at] = rows[:, 5].contiguous().view(torch.float32)
        self.tokens[at, :width] = rows[:, _FIELDS:]
        self.position[at] = 0
        self.ended[at] = 0

    def current(self) -> Tensor:
        """The token each lane reads next: [lanes] int64."""
        return self.tokens.gather(1, self.position.long()[:, None])[:, 0].long()

    def advance(self, chosen: Tensor, score: Tensor) -> None:
        """One token further: the prompt's while there is one, else the one chosen [lanes] int32, by `score` [lanes]."""
        running = self.ended == 0
        following = self.position + 1
        inside = following < self._prompt_length
        place = following.clamp(max=self.context - 1).long()[:, None]
        token = torch.where(running & ~inside, chosen, self.tokens.gather(1, place)[:, 0])
        self.tokens.scatter_(1, place, token[:, None])
        stopped = (token[:, None] == self._eos).any(dim=1)
        length = following + 1
        over = running & ~inside & (stopped | (length >= self._limit))
        self.ended.copy_(torch.where(over, torch.where(stopped, length, -length), self.ended))
        self.position.copy_(torch.where(running & ~over, following, self.position))
        self.broken.bitwise_or_((running & ~score.isfinite()).any().to(torch.int32))

    def snapshot(self) -> Snapshot:
        """The lanes as they are after the steps launched so far; the one before stays readable meanwhile."""
        self._snapshots.reverse()
        self._snapshots[0].take(self)
        return self._snapshots[0]


class Snapshot:
    """A copy of the lanes on the host, made without waiting for it."""

    def __init__(self, lanes: WriterLanes) -> None:
        pinned = lanes.device.type == "cuda"

        def like(tensor: Tensor) -> Tensor:
            return torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)

        self._tokens, self._ended, self._broken = like(lanes.tokens), like(lanes.ended), like(lanes.broken)
        self._taken = torch.Event(lanes.device) if pinned else None

    def take(self, lanes: WriterLanes) -> None:
        self._tokens.copy_(lanes.tokens, non_blocking=True)
        self._ended.copy_(lanes.ended, non_blocking=True)
        self._broken.copy_(lanes.broken, non_blocking=True)
        if self._taken is not None:
            self._taken.record()

    def read(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], bool]:
        """tokens [lanes, context], ended [lanes], whether a score was not finite."""
        if self._taken is not None:
            self._taken.synchronize()
        return self._tokens.numpy(), self._ended.numpy(), bool(self._broken[0])
