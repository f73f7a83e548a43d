"""What logits mean under the sampling parameters: the one definition of the distribution everyone uses.

    logits → `PROCESSORS` → `TRUNCATIONS` (where tokens are drawn) → log-probabilities

All in fp64 and row by row: a row's result is bit-identical whatever other rows share the call. Truncations
keep tokens by value, a tie at the boundary whole, so nothing depends on the order a sort leaves ties in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.core.request import ResolvedParams
from outrider.sampling.draw import argmax
from outrider.sampling.grammar_walk import allowed
from outrider.sampling.history import History

_MASS = 2.0**52
"""Probabilities are summed as integers of this scale: exactly, so in any order."""


def warp(logits: Tensor, params: ResolvedParams, history: History, paths: Sequence[Sequence[int]]) -> Tensor:
    """Log-probabilities [R, V] fp64 of `logits` [R, V]; NaN where those are no numbers, which whoever draws refuses.

    Row r stands at the end of `paths[r]`, the drafted tokens between the history and it. Temperature 0 gives
    0 at the likeliest token (the lowest id on ties) and -inf elsewhere.
    """
    z = process(logits, params, history, paths)
    if params.temperature > 0:
        return torch.log_softmax(truncate(z, params), dim=-1)
    best = argmax(z).unsqueeze(-1)
    largest = z.gather(-1, best)
    certain = torch.where(largest.isnan(), largest, torch.zeros_like(largest))
    return torch.full_like(z, -math.inf).scatter_(-1, best, certain)


def process(logits: Tensor, params: ResolvedParams, history: History, paths: Sequence[Sequence[int]]) -> Tensor:
    """A new [R, V] fp64 tensor: logits after `PROCESSORS`; its argmax is the greedy choice."""
    if logits.device.type == "cpu":
        # Not by torch: its threads would spin on for milliseconds, against those of the next pass.
        z = torch.from_numpy(logits.numpy().astype(np.float64))
    else:
        z = logits.to(torch.float64, copy=True)
    for processor in PROCESSORS:
        if not params.features.isdisjoint(processor.features):
            processor.apply(z, params, history, paths)
    return z


def truncate(z: Tensor, params: ResolvedParams) -> Tensor:
    """`TRUNCATIONS`, the temperature (which must not be 0) first; z may be overwritten.

    Returns log-probabilities up to a constant per row: 0 at the likeliest token, -inf at removed ones.
    """
    for truncation in TRUNCATIONS:
        if truncation.feature in params.features:
            z = truncation.apply(z, params)
    return z


def _penalise(z: Tensor, params: ResolvedParams, history: History, paths: Sequence[Sequence[int]]) -> None:
    """Repetition scales logits towards 'less likely' once per seen token; frequency and presence subtract."""
    ids, seen, counts = history.along(paths, z.device)
    part = z[:, ids]  # [R, C]
    scale = params.repetition_penalty
    if scale != 1:
        part = torch.where(seen, torch.where(part > 0, part / scale, part * scale), part)
    part -= params.frequency_penalty * counts
    part -= params.presence_penalty * (counts > 0).to(part.dtype)  # a bool times a float would be fp32
    z[:, ids] = part


def _add_bias(z: Tensor, params: ResolvedParams, history: History, paths: Sequence[Sequence[int]]) -> None:
    ids = torch.tensor(list(params.logit_bias), device=z.device)
    bias = torch.tensor(list(params.logit_bias.values()), dtype=z.dtype, device=z.device)
    z.index_add_(1, ids, bias.expand(len(z), -1))


def _forbid_early_end(z: Tensor, params: ResolvedParams, history: History, paths: Sequence[Sequence[int]]) -> None:
    early = [r for r, path in enumerate(paths) if history.generated + len(path) < params.min_tokens]
    if early and params.stop_token_ids:
        rows = torch.tensor(early, device=z.device).unsqueeze(1)
        z[rows, torch.tensor(sorted(params.stop_token_ids), device=z.device)] = -math.inf


def _follow_grammar(z: Tensor, params: ResolvedParams, history: History, paths: Sequence[Sequence[int]]) -> None:
    for row, path in zip(z, paths, strict=True):
        _keep_allowed(row, allowed(params, history, path))


def masked(logits: Tensor, params: ResolvedParams, history: History, path: Sequence[int]) -> Tensor:
    """As `process` where a grammar is all there is to apply, of one row [1, V] in this machine's memory: without the
    copy in fp64, which would say the same. Where nothing is left, not even that is: whoever draws asks `process`."""
    mask = allowed(params, history, path)
    return logits if mask is None else torch.from_numpy(np.where(mask, logits.numpy(), np.float32(-math.inf)))


def _keep_allowed(row: Tensor, mask: NDArray[np.bool_] | None) -> None:
    """Leave of `row` [V] what `mask` allows. A row of which nothing would be left stays as it is: the target's then
    stands where its request has ended, so that nothing is taken from it, and a draft from there is refused."""
    if mask is None:
        return
    if row.device.type == "cpu":
        values = row.numpy()
        if values[mask].max(initial=-math.inf) > -math.inf:
            np.copyto(values, -math.inf, where=~mask)
        return
    refused = torch.from_numpy(~mask).to(row.device)
    left = row.masked_fill(refused, -math.inf)
    if bool(left.isfinite().any()):
        row.copy_(left)


def _heat(z: Tensor, params: ResolvedParams) -> Tensor:
    return z.sub_(z.amax(dim=-1, keepdim=True)).div_(params.temperature)  # first the maximum: no overflow near 0


def _keep_top_k(z: Tensor, params: ResolvedParams) -> Tensor:
    if params.top_k >= z.shape[-1]:
        return z
    return _keep(z, z >= torch.topk(z, params.top_k, dim=-1).values[:, -1:])


def _keep_top_p(z: Tensor, params: ResolvedParams) -> Tensor:
    return _keep(z, _nucleus(z, params.top_p))


def _keep_min_p(z: Tensor, params: ResolvedParams) -> Tensor:
    return _keep(z, z >= math.log(params.min_p))


def _nucleus(z: Tensor, top_p: float) -> Tensor:
    """Which tokens [R, V] are needed to reach the share top_p of a row's mass, the likeliest taken first."""
    # A row of no numbers stays whole, for whoever chooses to refuse it: which integers it would make, each CPU decides.
    mass = torch.softmax(z, dim=-1).nan_to_num_(0.0).mul_(_MASS).round_().to(torch.int64)
    if mass.device.type == "cpu":
        edges = [_nucleus_edge(row, top_p) for row in mass.numpy()]
        return mass >= torch.tensor(edges).unsqueeze(1)
    need = (mass.sum(dim=-1, keepdim=True).double() * top_p).to(torch.int64)
    ordered = mass.sort(dim=-1, descending=True).values
    last = (ordered.cumsum(dim=-1) < need).sum(dim=-1, keepdim=True)
    return mass >= ordered.gather(-1, last)


def _nucleus_edge(mass: NDArray[np.int64], top_p: float) -> int:
    """The mass of the last token needed: as if all were sorted, but sorts only those that may matter."""
    total = int(mass.sum())
    need = int(float(total) * top_p)
    # All tokens below this weigh less than total - need together: the others reach `need` by themselves.
    negligible = (total - need) // len(mass)
    ordered = np.sort(mass[mass >= negligible])[::-1]
    return int(ordered[np.searchsorted(np.cumsum(ordered), need)])


def _keep(z: Tensor, kept: Tensor) -> Tensor:
    """z with -inf where not `kept`."""
    if z.device.type != "cpu":
        return z.masked_fill_(~kept, -math.inf)
    # Moving the few that stay is several times faster than testing every element.
    result = torch.full_like(z, -math.inf)
    stay = torch.from_numpy(np.flatnonzero(kept.numpy()))
    result.view(-1)[stay] = z.view(-1)[stay]
    return result


class Processor(NamedTuple):
    """Changes logits by the text before them, greedy or not; runs where a request has one of its features."""

    features: frozenset[str]
    apply: Callable[[Tensor, ResolvedParams, History, Sequence[Sequence[int]]], None]
    """On z [R, V] fp64, in place; row r stands at the end of path r."""


class Truncation(NamedTuple):
    """Changes scores by nothing but themselves, where tokens are drawn: rows of alike parameters are done together."""

    feature: str
    apply: Callable[[Tensor, ResolvedParams], Tensor]
    """Of z [R, V] fp64, which may be overwritten."""


PENALTIES = frozenset({"repetition_penalty", "frequency_penalty", "presence_penalty"})

PROCESSORS = (
    Processor(PENALTIES, _penalise),
    Processor(frozenset({"logit_bias"}), _add_bias),
    Processor(frozenset({"min_tokens"}), _forbid_early_end),
    Processor(frozenset({"grammar"}), _follow_grammar),
)
TRUNCATIONS = (
    Truncation("temperature", _heat),
    Truncation("top_k", _keep_top_k),
    Truncation("top_p", _keep_top_p),
    Truncation("min_p", _keep_min_p),
)
"""All there is between a model's logits and its log-probabilities, in this order."""

PROCESSED = frozenset[str]().union(*(processor.features for processor in PROCESSORS))
TRUNCATED = frozenset(truncation.feature for truncation in TRUNCATIONS)
REPORTED = frozenset({"logprobs", "processed_logprobs", "prompt_logprobs"})
"""Features that change no choice, only what is told of it."""
