"""What the target says at every node of a step, worked out only where a rule looks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Protocol

import torch
from torch import Tensor

from outrider.core.draft import ROOT, Draft
from outrider.core.model import Runner
from outrider.core.request import ResolvedParams, TokenLogprob
from outrider.sampling.draw import choices, not_a_number, perturb
from outrider.sampling.history import History
from outrider.sampling.native.sampler import KNOWN, HostRows, Row, sample
from outrider.sampling.noise import Key
from outrider.sampling.warp import PROCESSED, REPORTED, TRUNCATED, TRUNCATIONS, masked, process, truncate, warp

LOG_ZERO = -9999.0
"""How a log-probability of -inf is reported."""

_LIKELY = 0.5
"""Nodes at least this sure to be accepted are chosen at together with the roots. That takes no more than half the time
a node costs when a rule asks for it alone, so it pays from about an even chance on."""

_ELEMENTS = 1 << 25
"""Scores worked on at once: 256 MiB of fp64 per temporary tensor."""

_UNPROCESSED = TRUNCATED | REPORTED | {"verify"}
"""Features that leave the logits as the model gave them."""
_COMPILED = KNOWN | PROCESSED | REPORTED | {"verify"}
"""Features of requests whose tokens the compiled sampler may choose, from processed logits."""
_MASKED = KNOWN | REPORTED | {"verify", "grammar"}
"""Features that at most forbid tokens: then what the model gave is chosen from as it is, not from a copy in fp64."""
_TOGETHER = (PROCESSED - {"grammar"}) | TRUNCATED | REPORTED
"""Features of requests whose choices are made at all nodes beforehand, with those of others: not by the rejection rule,
which may ask for none, nor under a grammar, whose masks are dear to make."""
_manner = attrgetter(*(truncation.feature for truncation in TRUNCATIONS))
"""What requests agree in whose scores are truncated together."""


class Sampled(Protocol):
    """A request, as far as sampling is concerned."""

    @property
    def params(self) -> ResolvedParams: ...
    @property
    def history(self) -> History: ...


class TargetRows:
    """The target's distributions at the nodes of one request's draft, for one step.

    Of `logits` [rows, V], row `first` follows the last committed token, row first + 1 + i follows draft node i. Valid
    until the history grows. Rows are warped when asked for, because a walk visits few of them.
    """

    def __init__(
        self,
        logits: Tensor,
        params: ResolvedParams,
        history: History,
        draft: Draft,
        first: int = 0,
        host: HostRows | None = None,
    ) -> None:
        """`host`: the same logits for the compiled sampler; without it the reference chooses."""
        self.params = params
        self.nodes = range(ROOT, len(draft))
        self._bare = params.features <= _UNPROCESSED
        self._logits = logits
        self._root = first + 1
        self._host = host if params.features <= _COMPILED else None
        self._history = history
        self._draft = draft
        self._position = history.generated
        self._chosen: dict[int, int] = {}
        self._processed: Tensor | None = None

    def choose(self, node: int) -> int:
        """The target's token after `node` (or ROOT) under the coupled rule: argmax of logp + noise."""
        token = self._chosen.get(node)
        if token is None and (row := self.row(node)) is not None:
            token = sample([row])[0]
        if token is None:
            token = int(_choices([(self, range(node, node + 1))]))
        if token < 0:
            raise not_a_number()
        return token

    def row(self, node: int) -> Row | None:
        """What the compiled sampler needs to choose at `node`; None where it cannot."""
        if self._host is None:
            return None
        position = self._position + len(self._path(node))
        if self._bare:
            return Row(self._host, self._root + node, self.params, position)
        one = range(node, node + 1)
        # Kept: C reads it.
        if self.params.features <= _MASKED:
            self._processed = row = masked(self._raw(one), self.params, self._history, self._path(node))
        else:
            self._processed = row = self.processed(one)
        return Row(HostRows(row.data_ptr(), 0, self._host.vocab, row.dtype == torch.float64), 0, self.params, position)

    def likely(self) -> list[int]:
        """The nodes that the coupled rule will probably ask for: the root, and what the drafter is sure of."""
        if not self._bare:  # a processed row is a copy, dear to make in vain
            return [ROOT]
        return [ROOT, *[node for node, chance in enumerate(self._draft.confidence) if chance >= _LIKELY]]

    def settle(self, node: int, tokens: Sequence[int | None]) -> None:
        """Fix the choices at `node` and those after it, where they are known."""
        self._chosen.update((node + i, token) for i, token in enumerate(tokens) if token is not None)

    def logp(self, node: int) -> Tensor:
        """The target's log-probabilities [V] fp64 after `node`."""
        return warp(self._raw(range(node, node + 1)), self.params, self._history, [self._path(node)])[0]

    def logprobs(self, node: int, token: int) -> TokenLogprob:
        """What to report of `token`, emitted after `node`: of the raw logits, or processed if so asked."""
        raw = self._raw(range(node, node + 1))[0]
        logp = self.logp(node) if self.params.processed_logprobs else _raw_logp(raw)
        return _report(logp, token, self.params.logprobs or 0)

    def processed(self, nodes: range) -> Tensor:
        """Logits [nodes, V] after penalties, bias and mask (fp32 and not a copy where there are none)."""
        logits = self._raw(nodes)
        if self._bare:
            return logits
        return process(logits, self.params, self._history, [self._path(node) for node in nodes])

    def keys(self, nodes: range) -> list[Key]:
        """The noise that belongs to each node."""
        seed, choice = self.params.seed, self.params.choice
        return [Key(seed, choice, self._position + len(self._path(node))) for node in nodes]

    def _raw(self, nodes: range) -> Tensor:
        """The logits [nodes, V] as the model gave them."""
        return self._logits[self._root + nodes.start : self._root + nodes.stop]

    def _path(self, node: int) -> list[int]:
        """The drafted tokens that lead to `node`."""
        if self._history.generated != self._position:
            raise RuntimeError("TargetRows was asked after its request had moved on")
        return [self._draft.tokens[step] for step in self._draft.path(node)]


def target_rows(
    logits: Tensor, requests: Sequence[Sampled], drafts: Sequence[Draft], runner: Runner | None = None
) -> list[TargetRows]:
    """`TargetRows` of every request of a step, from all its logits [sum of 1 + nodes, V] in the same order.

    On a CPU the choices at the roots, which are always asked for, and at the nodes likely to be are made here together
    (by the threads of `runner`), the others when a rule asks, because a walk visits few nodes. Elsewhere reading one by
    one is dear: the choices of all nodes are made here and read back at once.
    """
    rows, start = [], 0
    host = HostRows.of(logits)
    for request, draft in zip(requests, drafts, strict=True):
        rows.append(TargetRows(logits, request.params, request.history, draft, start, host))
        start += 1 + len(draft)
    if not logits.is_cpu:
        _settle(rows, logits)
    elif start > 1:
        coupled = [row for row in rows if row.params.verify == "coupled"]
        wanted = [(row, node, ask) for row in coupled for node in row.likely() if (ask := row.row(node)) is not None]
        for (row, node, _), token in zip(wanted, sample([ask for _, _, ask in wanted], runner), strict=True):
            row.settle(node, [token])
    return rows


def _settle(rows: Sequence[TargetRows], logits: Tensor) -> None:
    """Make the choices of all nodes that the coupled rule may ask for; masks are made only where it does."""
    ahead = [row for row in rows if row.params.features <= _TOGETHER]
    batches = list(_batches(ahead, logits.shape[-1]))
    if all(row.params.features <= REPORTED for row in rows):  # no choice but the argmax of the raw logits
        chosen = [choices(logits)]
    else:
        chosen = [_choices([(row, row.nodes) for row in batch]) for batch in batches]
    read = torch.cat(chosen).tolist() if chosen else []
    for row in (row for batch in batches for row in batch):
        count = len(row.nodes)
        row.settle(ROOT, read[:count])
        read = read[count:]


def _choices(parts: Sequence[tuple[TargetRows, range]]) -> Tensor:
    """The choices [sum of nodes] at some nodes of requests that agree in temperature and truncation; -1 for none."""
    params = parts[0][0].params
    pieces = [rows.processed(nodes) for rows, nodes in parts]
    scores = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    if params.temperature > 0:
        # Truncation works in place, so on a copy: the logits are still needed.
        scores = truncate(scores.to(torch.float64, copy=len(pieces) == 1), params)
        scores = perturb(scores, [key for rows, nodes in parts for key in rows.keys(nodes)])
    return choices(scores)


def _batches(rows: Sequence[TargetRows], vocab: int) -> Iterator[list[TargetRows]]:
    """Requests whose choices can be made together, in lots that fit in memory; greedy ones stay in order."""
    alike: dict[tuple[float, ...], list[TargetRows]] = {}
    for row in rows:
        alike.setdefault(_manner(row.params), []).append(row)
    for group in alike.values():
        batch: list[TargetRows] = []
        size = 0
        for row in group:
            size += len(row.nodes) * vocab
            if batch and size > _ELEMENTS:
                yield batch
                batch, size = [], len(row.nodes) * vocab
            batch.append(row)
        yield batch


def score(logits: Tensor, token: int, count: int) -> TokenLogprob:
    """What to report of `token` where the model gave these raw logits [V], with `count` alternatives."""
    return _report(_raw_logp(logits), token, count)


def _raw_logp(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits.double(), dim=-1)


def _report(logp: Tensor, token: int, count: int) -> TokenLogprob:
    count = min(count, len(logp))
    top: list[tuple[int, float]] = []
    if count:
        # By value first: which of several tied tokens a top-k returns is not defined.
        likely = (logp >= torch.topk(logp, count).values[-1]).nonzero().flatten().tolist()
        ranked = sorted((-v, other) for other, v in zip(likely, logp[likely].tolist(), strict=True))
        top = [(other, reported(-v)) for v, other in ranked[:count]]
    return TokenLogprob(token, reported(float(logp[token])), tuple(top))


def reported(logprob: float) -> float:
    """JSON has no infinity; and what is not a number is not reported."""
    if math.isnan(logprob):
        raise not_a_number()
    return LOG_ZERO if logprob == -math.inf else logprob
