"""What changes the scores of lanes before a token is chosen: what their texts said, biases, tokens forbidden early.

One word per lane and token of the vocabulary, which every score is looked up by, so that no list is walked and nothing
depends on how much was said. Words are written when a request is seated; each step counts the tokens it gained.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from outrider.core.step import MOST_BIASES, Processing
from outrider.models.cuda.graphs import Staging, oldest
from outrider.models.cuda.kernels import scores
from outrider.models.cuda.masks import Masks

_NUMBERS, _WORDS = scores.NUMBERS.value, scores.WORDS.value
_SEEN, _COUNT, _EDIT = scores.SEEN.value, scores.COUNT.value, scores.EDIT.value
_BANNED = np.int32(-(2**31))
assert scores.MOST_EDITS.value == MOST_BIASES


class Said:
    """Of up to `lanes` lanes. `drafts` [lanes, longest]: the chains that rows may stand in.

    A lane's entry: its penalties and one unused number, its biases by number, in fp64; then the words (see
    `kernels/scores.py`). `marks` are those of the rows placed last whose logits are wanted. What grammars forbid comes
    on top (`masks`), anew for every step.
    """

    def __init__(self, lanes: int, vocab: int, drafts: Tensor) -> None:
        device = drafts.device
        self._vocab = vocab
        self.stride = _WORDS + vocab + vocab % 2  # numbers of 8 bytes begin every lane
        self.table = torch.zeros(lanes, self.stride, dtype=torch.int32, device=device)
        self.numbers = self.table.view(torch.float64)
        self.marks = torch.zeros(lanes * (1 + drafts.shape[1]), scores.MARKS.value, dtype=torch.int32, device=device)
        self.drafts = drafts
        self.masks = Masks(lanes, vocab, 1 + drafts.shape[1], device)
        self._staged = [Staging(self.stride, device) for _ in range(8)]

    def seat(self, number: int, asked: Processing) -> None:
        """For the steps launched from now on."""
        staged = oldest(self._staged)
        entry = staged.free().numpy()
        entry[:] = 0
        numbers, words = entry[:_WORDS].view(np.float64), entry[_WORDS:]
        numbers[:3] = asked.repetition, asked.frequency, asked.presence
        known = asked.seen < self._vocab
        words[asked.seen[known]] = np.minimum(asked.counts[known], _COUNT) | _SEEN
        for i, (token, bias) in enumerate(asked.bias.items(), start=1):
            numbers[_NUMBERS + i] = bias
            words[token] |= i << _EDIT
        words[list(asked.banned)] |= _BANNED
        staged.send(self.table[number])

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        for source, target in zip(sources, targets, strict=True):
            self.table[target] = self.table[source]
