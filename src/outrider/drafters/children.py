"""What may follow a node, from a draft model's logits: as the coupled or the rejection rule wants it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from outrider.core.request import ResolvedParams
from outrider.drafters.tree_builder import Offer
from outrider.sampling.draw import argmax, perturb
from outrider.sampling.history import History
from outrider.sampling.noise import Key
from outrider.sampling.random_source import RandomSource, Stream
from outrider.sampling.warp import process, truncate, warp


def samples(params: ResolvedParams) -> bool:
    """Whether drafts have to be sampled and declare q; a greedy target is matched by bare proposals."""
    return params.verify == "rejection" and params.temperature > 0


def ranked_offers(
    logits: Tensor, params: ResolvedParams, history: History, paths: Sequence[Sequence[int]], count: int
) -> list[Offer]:
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
        Offer(
            likely=[(int(token), p) for token, p, _, _ in row],
            draw=in_turn([(int(token), p) for _, _, token, p in row]),
            random=params.temperature > 0,
        )
        for row in read
    ]


def sampled_offers(
    logits: Tensor,
    params: ResolvedParams,
    history: History,
    paths: Sequence[Sequence[int]],
    count: int,
    chance: RandomSource,
    declared: list[Tensor],
) -> list[Offer]:
    """Per row of `logits` [R, V]: children drawn without replacement from its distribution.

    Each draw appends the log-probabilities [V] it was made from to `declared`, which becomes the draft's q.
    """
    logp = warp(logits, params, history, paths)
    probabilities = logp.exp()
    likely = _top(logp, count)
    read = torch.stack([likely, probabilities.gather(-1, likely)], dim=-1).tolist()
    return [
        Offer(
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
