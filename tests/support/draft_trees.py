"""Draft trees as the device is to grow and judge them, in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.core.draft import ROOT
from outrider.core.request import ResolvedParams
from outrider.core.step import tree_of
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.models.cuda.growth import BRANCH, WIDTH
from outrider.sampling.noise import Key, gumbel_at

Logits = Callable[[Sequence[int]], NDArray[np.float32]]
"""What a head says after a path of drafted tokens, of each of its ids."""


def grown(
    logits: Logits, ids: Sequence[int], nodes: int, params: ResolvedParams, generated: int
) -> tuple[list[int], list[int]]:
    """Tokens and parents of the tree of so many nodes, where a head says this after the text."""
    paths: list[tuple[int, ...]] = []
    parents: list[int] = []
    claims: list[float] = []
    level: list[int] = [ROOT]
    for depth in range(tree_of(nodes).drafted):
        first = len(paths)
        for node in level:
            path, claim = (paths[node], claims[node]) if node != ROOT else ((), 1.0)
            weights = _weights(logits(path), ids, params, generated + depth)
            for i in np.argsort(-weights, kind="stable")[: np.count_nonzero(weights)][:BRANCH]:
                paths.append((*path, ids[i]))
                parents.append(node)
                claims.append(claim * float(weights[i]))
        level = sorted(range(first, len(paths)), key=lambda node: -claims[node])[:WIDTH]
    kept = sorted(sorted(range(len(paths)), key=lambda node: -claims[node])[:nodes])
    places = {ROOT: ROOT} | {node: i for i, node in enumerate(kept)}
    return [paths[node][-1] for node in kept], [places[parents[node]] for node in kept]


def _weights(
    logits: NDArray[np.float32], ids: Sequence[int], params: ResolvedParams, position: int
) -> NDArray[np.float64]:
    if params.temperature == 0:
        return _shares(logits.astype(np.float64))
    heated = logits.astype(np.float64) / params.temperature
    noise = gumbel_at([Key(params.seed, params.choice, position)], torch.tensor(ids))[0].numpy()
    weights, plain = _shares(heated + noise), _shares(heated)
    found = np.argsort(-weights, kind="stable")[:BRANCH]
    cut = [i for i in found if not _left(plain, i, params)]
    left = max(1 - weights[cut].sum(), 1e-9)
    weights[cut] = 0
    shared: NDArray[np.float64] = np.minimum(1.0, weights / left)
    return shared


def _shares(score: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(score - score.max())
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def _left(chances: NDArray[np.float64], i: int, params: ResolvedParams) -> bool:
    """By top-k, top-p and min-p."""
    likelier = chances > chances[i]
    few = not params.top_k or likelier.sum() < params.top_k
    return bool(few and chances[likelier].sum() < params.top_p and chances[i] >= params.min_p * chances.max())


def walked(tokens: Sequence[int], parents: Sequence[int], text: Sequence[int]) -> tuple[int, ...]:
    """The nodes of a tree that say how the text goes on."""
    path: list[int] = []
    for token in text:
        above = path[-1] if path else ROOT
        child = [i for i, parent in enumerate(parents) if parent == above and tokens[i] == token]
        if not child:
            break
        path += child
    return tuple(path)


def finish(engine: Engine, some: list[Request], late: int = 0) -> list[list[int]]:
    """The last `late` join when others are under way."""
    for one in some[: len(some) - late]:
        engine.add(one)
    for _ in range(2):
        engine.step()
    for one in some[len(some) - late :]:
        engine.add(one)
    while not all(one.finish_reason for one in some):
        engine.step()
    return [one.tokens for one in some]


def judged(some: list[Request]) -> int:
    """Steps in which a node was accepted that no chain would have drafted; every tree was followed to its end."""
    branched = 0
    for one in some:
        at = one.prompt_length
        for step in one.trace:
            tokens, parents = list(step.draft.tokens), list(step.draft.parents)
            come = len(step.path) + (step.token is not None)
            assert step.path == walked(tokens, parents, one.tokens[at:])[: come if step.token is None else None]
            branched += any(parents.index(parents[node]) != node for node in step.path)
            at += come
    return branched
