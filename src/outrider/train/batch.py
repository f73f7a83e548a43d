"""A batch of texts to learn from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

NARROWEST = 16
"""Columns of a batch at the least: every step of an unroll needs a row of its own, however short the texts are."""


@dataclass(slots=True)
class Texts:
    """`tokens` [B, T], padded on the right, T at least `NARROWEST`. Text b is a prompt of `prompts[b]` tokens and its
    answer, up to `lengths[b]`; `greedy[b]`: the answer was chosen, not sampled. `earlier[b]`: [start, stop) of answers
    inside the prompt, which are learned from too."""

    tokens: Tensor
    lengths: list[int]
    prompts: list[int]
    greedy: list[bool]
    earlier: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    _answers: tuple[Tensor, Tensor] | None = field(default=None, init=False)
    _bounds: list[tuple[int, int]] = field(default_factory=list, init=False)

    @property
    def width(self) -> int:
        return self.tokens.shape[1]

    @property
    def count(self) -> int:
        """Tokens, padding not counted."""
        return sum(self.lengths)

    @property
    def first_answer(self) -> int:
        """No answer begins before this token of its text."""
        return min([*self.prompts, *(spans[0][0] for spans in self.earlier if spans)])

    def answers(self) -> tuple[Tensor, Tensor]:
        """Of every answer token that a head can guess (the first two tokens of a text it cannot): its index in the
        flattened tokens, and how many answer tokens of its text come before it."""
        if self._answers is None:
            where, depth, self._bounds = [], [], []
            earlier = self.earlier or [()] * len(self.lengths)
            at = 0
            for row, last in enumerate(zip(self.prompts, self.lengths, strict=True)):
                for start, stop in (*earlier[row], last):
                    span = np.arange(max(start, 2), stop)
                    where.append(row * self.width + span)
                    depth.append(span - start)
                    at += len(span)
                self._bounds.append((at - len(span), at))
            self._answers = torch.from_numpy(np.concatenate(where)), torch.from_numpy(np.concatenate(depth))
        return self._answers

    def answer_slice(self, text: int) -> slice:
        """Where the tokens of the last answer of `text` lie in `answers`."""
        self.answers()
        return slice(*self._bounds[text])

    def prepare(self, device: torch.device) -> None:
        """What the host has to do before a step; copies from pinned memory do not wait for the GPU."""
        where, depth = self.answers()
        if device.type == "cuda":
            self.tokens = self.tokens.pin_memory()
            self._answers = where.pin_memory(), depth.pin_memory()
