"""What the target says at every node of a step, worked out only where a rule looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from outrider.sampling.draw import argmax, perturb
from outrider.sampling.history import History
from outrider.sampling.warp import process, truncate, warp
from outrider.types import ROOT, Draft, ResolvedParams, TokenLogprob

LOG_ZERO = -9999.0
"""How a log-probability of -inf is reported."""


class Sampled(Protocol):
    """A sequence, as far as sampling is concerned."""

    @property
    def params(self) -> ResolvedParams: ...
    @property
    def history(self) -> History: ...


class TargetRows:
    """The target's distributions at the nodes of one sequence's draft, for one step.

    `logits` [1 + nodes, V]: row 0 follows the last committed token, row 1 + i follows draft node i. Valid
    until the history grows. Rows are warped when asked for, because a walk visits few of them.
    """

    def __init__(self, logits: Tensor, params: ResolvedParams, history: History, draft: Draft) -> None:
        self._logits = logits
        self._params = params
        self._history = history
        self._draft = draft
        self._position = history.generated
        self.nodes = range(ROOT, len(draft))
        self._settled: list[int] | None = None
        self.plain_greedy = params.verify == "coupled" and _plain_greedy(params)
        """Whether a choice is just the argmax of the raw logits."""
        self.choose_ahead = self.plain_greedy or (params.verify == "coupled" and logits.device.type != "cpu")
        """Whether choices for all nodes at once cost less than for one after the other."""

    def choose(self, node: int) -> int:
        """The target's token after `node` (or ROOT) under the coupled rule: argmax of logp + noise."""
        if self._settled is not None:
            return self._settled[1 + node]
        return int(self.choices(range(node, node + 1)))

    def logp(self, node: int) -> Tensor:
        """The target's log-probabilities [V] fp64 after `node`."""
        nodes = range(node, node + 1)
        return warp(self._rows(nodes), self._params, self._history, self._paths(nodes))[0]

    def logprobs(self, node: int, token: int) -> TokenLogprob:
        """What to report of `token`, emitted after `node`: of the raw logits, or processed if so asked."""
        if self._params.processed_logprobs:
            logp = self.logp(node)
        else:
            logp = torch.log_softmax(self._logits[1 + node].double(), dim=-1)
        count = min(self._params.logprobs or 0, len(logp))
        top: list[tuple[int, float]] = []
        if count:
            # By value first: which of several tied tokens a top-k returns is not defined.
            likely = (logp >= torch.topk(logp, count).values[-1]).nonzero().flatten().tolist()
            ranked = sorted(
                (-value, other) for other, value in zip(likely, logp[likely].tolist(), strict=True)
            )
            top = [(other, _reported(-value)) for value, other in ranked[:count]]
        return TokenLogprob(token, _reported(float(logp[token])), tuple(top))

    def choices(self, nodes: range) -> Tensor:
        """`choose` for a range of nodes at once: token ids [nodes], on the logits' device."""
        if self.plain_greedy:
            return argmax(self._rows(nodes))
        paths = self._paths(nodes)
        scores = process(self._rows(nodes), self._params, self._history, paths)
        if self._params.temperature > 0:
            positions = [self._position + len(path) for path in paths]
            scores = truncate(scores, self._params)
            scores = perturb(scores, self._params.seed, self._params.choice, positions)
        return argmax(scores)

    def settle(self, chosen: list[int]) -> list[int]:
        """Take this sequence's choices off the front of a list; returns the rest."""
        count = len(self._logits)
        self._settled = chosen[:count]
        return chosen[count:]

    def _rows(self, nodes: range) -> Tensor:
        return self._logits[1 + nodes.start : 1 + nodes.stop]

    def _paths(self, nodes: range) -> list[list[int]]:
        """The drafted tokens that lead to each node."""
        if self._history.generated != self._position:
            raise RuntimeError("TargetRows was asked after its sequence had moved on")
        return [[self._draft.tokens[step] for step in self._draft.path(node)] for node in nodes]


def target_rows(logits: Tensor, sequences: Sequence[Sampled], drafts: Sequence[Draft]) -> list[TargetRows]:
    """`TargetRows` of every sequence of a step, from all its logits [sum of 1 + nodes, V] in the same order.

    Where choosing is cheap (plain greedy) or reading one by one is dear (a GPU), the choices of all nodes are
    made here and read back at once; otherwise each is made when a rule asks.
    """
    rows, start = [], 0
    for sequence, draft in zip(sequences, drafts, strict=True):
        end = start + 1 + len(draft)
        rows.append(TargetRows(logits[start:end], sequence.params, sequence.history, draft))
        start = end
    ahead = [row for row in rows if row.choose_ahead]
    if ahead:
        everything = all(row.plain_greedy for row in rows)
        chosen = argmax(logits) if everything else torch.cat([row.choices(row.nodes) for row in ahead])
        read = chosen.tolist()
        for row in ahead:
            read = row.settle(read)
    return rows


def _plain_greedy(params: ResolvedParams) -> bool:
    return (
        params.temperature == 0
        and params.repetition_penalty == 1
        and not params.frequency_penalty
        and not params.presence_penalty
        and not params.logit_bias
        and not params.min_tokens
    )


def _reported(logprob: float) -> float:
    return LOG_ZERO if logprob == -math.inf else logprob
