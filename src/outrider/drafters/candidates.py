"""What may follow a node, from a draft model's logits: as the coupled or the rejection rule wants it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from outrider.core.request import ResolvedParams
from outrider.sampling.draw import argmax, perturb
from outrider.sampling.history import History
from outrider.sampling.noise import Key
from outrider.sampling.random_source import RandomSource, Stream
from outrider.sampling.shares import shares
from outrider.sampling.warp import process, truncate, warp


@dataclass(slots=True)
class Candidates:
    """What may follow one node: the children still to be drawn, one after the other.

    `likely` are the node's most probable tokens with their probabilities, at least as many as children may be
    drawn. `draw(node)` draws the next child, to become draft node `node`: (token, its probability).
    """

    likely: Sequence[tuple[int, float]]
    draw: Callable[[int], tuple[int, float]]
    random: bool
    """Whether the target samples here (temperature above 0)."""
    drawn: set[int] = field(default_factory=set)
    expected: float = 0.0
    """How likely the target is to follow one of the children drawn so far."""
    spent: float = 0.0
    """The draft's own probability of the children drawn so far."""

    def outlook(self) -> float:
        """How likely the target is to follow the next child, estimated before that is drawn.

        A greedy target follows the draft about as often as the draft is sure of itself: its largest
        probability left, m. A sampling one, which draws alike, also agrees about half of the time where the
        draft is unsure: (1 + m) / 2. Once the first child is refused little of that is left: m has to do.
        Where probabilities are not numbers, none: nothing is drafted there.
        """
        best = max((p for token, p in self.likely if p > 0 and token not in self.drawn), default=0.0)
        if not best:
            return 0.0
        best /= max(1.0 - self.spent, best)
        if self.random and not self.drawn:
            best = (1.0 + best) / 2
        return (1.0 - self.expected) * best

    def take(self, node: int) -> int:
        outlook = self.outlook()
        token, probability = self.draw(node)
        self.drawn.add(token)
        self.expected += outlook
        self.spent += probability
        return token


def samples(params: ResolvedParams) -> bool:
    """Whether drafts have to be sampled and declare q; a greedy target is matched by bare proposals."""
    return params.judged


def ranked_candidates(
    logits: Tensor, params: ResolvedParams, history: History, paths: Sequence[Sequence[int]], count: int
) -> list[Candidates]:
    """Per row of `logits` [R, V]: the tokens that decoding the draft model itself would choose, best first.

    At temperature 0 by probability, otherwise by log-probability plus the noise the target will use at the
    same position; the two then choose alike as often as their distributions allow.
    """
    z = process(logits, params, history, paths)
    if params.temperature > 0:
        z = truncate(z, params)
    probabilities = torch.softmax(z, dim=-1)
    likely = ranked = _top(z, count)
    if params.temperature > 0:
        keys = [Key(params.seed, params.choice, history.generated + len(path)) for path in paths]
        ranked = _top(perturb(z, keys), count)
    columns = [likely, probabilities.gather(-1, likely), ranked, probabilities.gather(-1, ranked)]
    read = torch.stack(columns, dim=-1).tolist()  # one wait for the device
    return [
        Candidates(
            likely=[(int(token), p) for token, p, _, _ in row],
            draw=in_turn([(int(token), p) for _, _, token, p in row]),
            random=params.temperature > 0,
        )
        for row in read
    ]


def sampled_candidates(
    logits: Tensor,
    params: ResolvedParams,
    history: History,
    paths: Sequence[Sequence[int]],
    count: int,
    chance: RandomSource,
    declared: list[Tensor],
) -> list[Candidates]:
    """Per row of `logits` [R, V]: children drawn without replacement from its distribution.

    Each draw appends the log-probabilities [V] it was made from to `declared`, which becomes the draft's q.
    """
    logp = warp(logits, params, history, paths)
    probabilities = shares(logp)  # as whoever judges them will take them
    likely = _top(logp, count)
    read = torch.stack([likely, probabilities.gather(-1, likely)], dim=-1).tolist()
    return [
        Candidates(
            likely=[(int(token), p) for token, p in read[row]],
            draw=_without_replacement(probabilities[row], chance, partial(declared.append, logp[row])),
            random=True,
        )
        for row in range(len(logp))
    ]


def _top(scores: Tensor, count: int) -> Tensor:
    """Ids [R, count] of the largest, in falling order."""
    if count == 1:
        return argmax(scores).unsqueeze(-1)
    return torch.topk(scores, min(count, scores.shape[-1]), dim=-1).indices


def in_turn(children: Sequence[tuple[int, float]]) -> Callable[[int], tuple[int, float]]:
    """Draws what was chosen beforehand, in order."""
    following = iter(children)
    return lambda node: next(following)


def _without_replacement(
    weights: Tensor, chance: RandomSource, declare: Callable[[], None]
) -> Callable[[int], tuple[int, float]]:
    def draw(node: int) -> tuple[int, float]:
        token = chance.categorical(weights, Stream.DRAFT, node)
        probability = float(weights[token])
        weights[token] = 0
        declare()
        return token, probability

    return draw
