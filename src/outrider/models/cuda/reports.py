"""What the rows of a step report of their logits, on its way to the host."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.core.step import MOST_LOGPROBS, Reported
from outrider.models.cuda.chooser import BLOCK
from outrider.models.cuda.kernels import report

_TOLD = 1 + MOST_LOGPROBS
_INTEGERS = 2 * _TOLD
"""Where they begin in a row."""
ROW = _INTEGERS + _TOLD + 1
"""Int32 of a row: the log-probabilities in fp64, how many are told, tokens; one unused."""
_TOKENS = _INTEGERS + report.TOKENS.value


class Reports:
    """Of the first `vocab` columns of up to `rows` rows of logits."""

    def __init__(self, rows: int, vocab: int, device: torch.device) -> None:
        self._vocab = vocab
        self._blocks = -(-vocab // BLOCK)
        self._best, self._weight = torch.zeros(2, rows, self._blocks, dtype=torch.float64, device=device)
        self._which = torch.zeros(rows, self._blocks, dtype=torch.int32, device=device)
        self.table = torch.zeros(rows, ROW, dtype=torch.int32, device=device)

    def fill(self, logits: Tensor, rows: int, marks: Tensor, chosen: Tensor, first: int = 0) -> None:
        """Rows of the table from `first` on, by the first `rows` logits. `chosen` int32: the tokens to report; `marks`:
        which rows report how much (`kernels/scores.py`)."""
        weighed = logits, marks[first:], self._best, self._which, self._weight
        table = self.table[first:]
        stride = logits.stride(0)
        report.weigh_kernel[(rows, self._blocks)](*weighed, stride, self._vocab, BLOCK=BLOCK)
        report.report_kernel[(rows,)](
            *weighed,
            chosen[first:],
            table.view(torch.float64),
            table[:, _INTEGERS:],
            stride,
            self._vocab,
            self._blocks,
            BLOCK=BLOCK,
            BLOCKS=1 << (self._blocks - 1).bit_length(),
            ROW=ROW,
        )

    def read(self, table: Tensor) -> list[Reported | None]:
        """Of rows of such a table that the host has; None: nothing is told of one."""
        values, integers = table.view(torch.float64)[:, :_TOLD].tolist(), table[:, _INTEGERS:-1].tolist()
        return [self._row(*each) for each in zip(values, integers, strict=True)]

    def _row(self, values: list[float], integers: list[int]) -> Reported | None:
        told, *tokens = integers
        if not told:
            return None
        tokens = tokens[: min(told - 1, self._vocab)]
        if -1 in tokens:  # those that are left are impossible alike: the lowest ids first
            possible = tokens[: tokens.index(-1)]
            others = (token for token in range(self._vocab) if token not in possible)
            tokens = [*possible, *(next(others) for _ in range(len(tokens) - len(possible)))]
        return Reported(values[0], tokens, values[1 : 1 + len(tokens)])
