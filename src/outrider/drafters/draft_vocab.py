"""Children from logits over a reduced vocabulary, under the noise of the whole one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.core.request import ResolvedParams
from outrider.drafters.candidates import Candidates, in_turn
from outrider.drafters.host_rows import copied, joined, kept
from outrider.sampling.grammar_walk import allowed
from outrider.sampling.history import History
from outrider.sampling.noise import Key, gumbel_at, rough_gumbel
from outrider.sampling.warp import REPORTED

_COOLEST, _HOTTEST = 1e-6, 1e6


IMPRECISELY = REPORTED | {
    *("verify", "temperature", "top_k", "top_p", "min_p", "grammar", "min_tokens", "logit_bias"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty"),
}
"""Features under which `ReducedVocabulary.ranked_candidates` proposes well enough, as `plainly_ranked` says why."""


def plainly_ranked(params: ResolvedParams, depth: int) -> bool:
    """Whether temperature alone decides which followers are proposed `depth` levels down. A proposal need not be exact:
    what top-k, top-p and min-p take away is seldom proposed, and penalties and biases would have to be worked out
    over the whole vocabulary at every node, which costs more than the better drafts bring (and makes all drafts look
    dear to the controller). A grammar is asked for the first level only; what it forbids further down is refused."""
    return params.features <= IMPRECISELY and (params.grammar is None or depth > 0)


def fp32_temperature(params: ResolvedParams) -> float:
    """The temperature as far as fp32 can divide by it; beyond, what is drafted hardly changes any more."""
    return min(max(params.temperature, _COOLEST), _HOTTEST)


class ReducedVocabulary:
    """Column i of a drafter's logits stands for token `ids[i]` of a vocabulary of `size`; other tokens are never
    drafted. Ids rise; columns of those from `size` on (a padded vocabulary's) are left out."""

    def __init__(self, ids: Tensor, size: int) -> None:
        ids = ids[ids < size]
        self._ids = ids
        self._size = size
        self._tokens: NDArray[np.int64] = ids.cpu().numpy()
        self._hashed = self._tokens.astype(np.uint32)

    def widened(self, logits: Tensor) -> Tensor:
        """[R, size], impossible where there is no column."""
        wide = torch.full((len(logits), self._size), -torch.inf, device=logits.device)
        return wide.index_copy_(1, self._ids, logits[:, : len(self._ids)])

    def ranked_candidates(
        self, logits: Tensor, params: ResolvedParams, history: History, paths: Sequence[Sequence[int]], count: int
    ) -> list[Candidates]:
        """As those of the whole vocabulary, by the same noise, but far cheaper: a draft need not be exact, so fp32
        does, and only temperature and grammar shape the distribution (`plainly_ranked`)."""
        logits = self._masked(logits[:, : len(self._ids)], params, history, paths)
        if logits.device.type != "cpu":
            return self._ranked_on_device(logits, params, history, paths, count)
        rows = logits.numpy()
        if params.temperature > 0 and params.temperature != 1:
            rows = rows / np.float32(fp32_temperature(params))
        noise: dict[int, NDArray[np.float32]] = {}  # by depth: siblings stand at the same position
        found = []
        for row, path in zip(rows, paths, strict=True):
            likely, shares = self._best(row, row, count)
            chosen = list(zip(likely, shares, strict=True))
            drawn = chosen
            if params.temperature > 0:
                if len(path) not in noise:
                    key = Key(params.seed, params.choice, history.generated + len(path))
                    noise[len(path)] = rough_gumbel(key, self._hashed)
                drawn = list(zip(*self._best(row + noise[len(path)], row, count), strict=True))
            found.append(Candidates(likely=chosen, draw=in_turn(drawn), random=params.temperature > 0))
        return found

    def _masked(
        self, logits: Tensor, params: ResolvedParams, history: History, paths: Sequence[Sequence[int]]
    ) -> Tensor:
        """Without what a grammar forbids in the first level, as long as that leaves anything."""
        if params.grammar is None or all(paths):
            return logits
        logits = joined([copied(kept(logits))])
        for row, path in zip(logits, paths, strict=True):
            mask = None if path else allowed(params, history, path)
            if mask is not None and (known := mask[self._tokens]).any():
                row.masked_fill_(torch.from_numpy(~known).to(row.device), -torch.inf)
        return logits

    def _ranked_on_device(
        self, logits: Tensor, params: ResolvedParams, history: History, paths: Sequence[Sequence[int]], count: int
    ) -> list[Candidates]:
        """The same where the logits are: only the children come to the host, in one wait."""
        scores = logits / fp32_temperature(params) if params.temperature > 0 else logits
        count = min(count, scores.shape[1])
        chances = torch.softmax(scores, dim=-1)
        columns = likely = torch.topk(scores, count).indices
        if params.temperature > 0:
            keys = [Key(params.seed, params.choice, history.generated + len(path)) for path in paths]
            distinct = list(dict.fromkeys(keys))  # siblings stand at the same position
            noise = gumbel_at(distinct, self._ids)
            if len(distinct) > 1:
                noise = noise[[distinct.index(key) for key in keys]]
            columns = torch.topk(scores + noise, count).indices
        parts = [self._ids[likely], chances.gather(1, likely), self._ids[columns], chances.gather(1, columns)]
        read = torch.stack([part.double() for part in parts], dim=-1).tolist()  # the wait
        return [
            Candidates(
                likely=[(int(token), p) for token, p, _, _ in row],
                draw=in_turn([(int(token), p) for _, _, token, p in row]),
                random=params.temperature > 0,
            )
            for row in read
        ]

    def _best(
        self, scores: NDArray[np.float32], logits: NDArray[np.float32], count: int
    ) -> tuple[list[int], list[float]]:
        """The tokens of the `count` largest scores, falling, and their probabilities under `logits`."""
        left = scores.copy()
        columns = []
        for _ in range(min(count, len(left))):
            column = int(left.argmax())
            if left[column] == -np.inf:  # all that a grammar allows
                break
            columns.append(column)
            left[column] = -np.inf
        top = logits.max()
        total = float(np.exp(logits - top).sum())
        return [int(self._tokens[c]) for c in columns], [float(np.exp(logits[c] - top)) / total for c in columns]
