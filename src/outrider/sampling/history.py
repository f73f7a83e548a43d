"""The tokens that penalties and grammars look at, taken in as they come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.core.request import GrammarWalk, TokenGrammar


class History:
    """Which tokens a request has seen (prompt and output) and how often its output said them.

    Kept sparse, one column per distinct token, because a history names few of the vocabulary's tokens:
    appending costs O(tokens) and a penalty touches O(distinct tokens) logits.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._prompt = prompt
        """Not counted yet: most requests have no penalty, so nobody ever asks."""
        self._output: list[int] = []
        self._counted = 0
        """Tokens of the output that are, likewise."""
        self._walked = 0
        """The same for the grammar."""
        self._walk: GrammarWalk | None = None
        self._column: dict[int, int] = {}
        self._ids = np.empty(64, dtype=np.int64)
        self._counts = np.zeros(64, dtype=np.float64)

    def append(self, tokens: Sequence[int]) -> None:
        """Add output tokens."""
        self._output += tokens

    @property
    def generated(self) -> int:
        """Output tokens so far: the generated position of the next one."""
        return len(self._output)

    def walk(self, grammar: TokenGrammar) -> GrammarWalk:
        """Where the output stands in its grammar, always the same one."""
        if self._walk is None:
            self._walk = grammar.start()
        if self._walked < len(self._output):
            self._walk.advance(self._output[self._walked :])
            self._walked = len(self._output)
        return self._walk

    def tally(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The distinct tokens [C] of prompt and output, and how often the output has each."""
        self._count()
        known = len(self._column)
        return self._ids[:known].copy(), self._counts[:known].astype(np.int64)

    def along(self, paths: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """The history as seen at the end of each path, a row per path of tokens that follow the output.

        Returns ids [C] of distinct tokens, seen [R, C] (in prompt, output or the row's path) and
        counts [R, C] fp64 (in output or the row's path).
        """
        self._count()
        known = len(self._column)
        fresh: dict[int, int] = {}  # tokens that only paths have: columns after the known ones
        rows, columns = [], []
        for row, path in enumerate(paths):
            for token in path:
                column = self._column.get(token)
                if column is None:
                    column = fresh.setdefault(token, known + len(fresh))
                rows.append(row)
                columns.append(column)
        ids = np.concatenate([self._ids[:known], np.fromiter(fresh, np.int64, len(fresh))])
        seen = np.zeros((len(paths), len(ids)), dtype=np.bool_)
        seen[:, :known] = True
        seen[rows, columns] = True
        counts = np.zeros((len(paths), len(ids)))
        counts[:, :known] = self._counts[:known]
        np.add.at(counts, (rows, columns), 1.0)
        return (
            torch.from_numpy(ids).to(device),
            torch.from_numpy(seen).to(device),
            torch.from_numpy(counts).to(device),
        )

    def _count(self) -> None:
        """Count what is new."""
        for token in self._prompt:
            self._find(token)
        self._prompt = ()
        for token in self._output[self._counted :]:
            # Not `counts[find(token)]`: finding may move the counts to a bigger array.
            column = self._find(token)
            self._counts[column] += 1
        self._counted = len(self._output)

    def _find(self, token: int) -> int:
        """The token's column, made if it is new."""
        column = self._column.setdefault(token, len(self._column))
        if column == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[column] = token
        return column
