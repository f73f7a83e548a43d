"""A batch of texts to learn from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass(slots=True)
class Texts:
    """`tokens` [B, T], padded on the right. Text b is a prompt of `prompts[b]` tokens and its answer, up to
    `lengths[b]`; `greedy[b]`: the answer was chosen, not sampled."""

    tokens: Tensor
    lengths: list[int]
    prompts: list[int]
    greedy: list[bool]
    _answers: tuple[Tensor, Tensor] | None = field(default=None, init=False)
    _bounds: list[int] = field(default_factory=list, init=False)

    @property
    def width(self) -> int:
        return self.tokens.shape[1]

    @property
    def count(self) -> int:
        """Tokens, padding not counted."""
        return sum(self.lengths)

    def answers(self) -> tuple[Tensor, Tensor]:
        """Of every answer token that a head can guess (the first two tokens of a text it cannot): its index in the
        flattened tokens, and how many answer tokens of its text come before it."""
        if self._answers is None:
            starts = [max(prompt, 2) for prompt in self.prompts]
            spans = [np.arange(start, length) for start, length in zip(starts, self.lengths, strict=True)]
            self._bounds = [0, *np.cumsum([len(span) for span in spans]).tolist()]
            where = np.concatenate([row * self.width + span for row, span in enumerate(spans)])
            depth = np.concatenate([span - prompt for span, prompt in zip(spans, self.prompts, strict=True)])
            self._answers = torch.from_numpy(where), torch.from_numpy(depth)
        return self._answers

    def answer_slice(self, text: int) -> slice:
        """Where the tokens of `text` lie in `answers`."""
        self.answers()
        return slice(self._bounds[text], self._bounds[text + 1])
