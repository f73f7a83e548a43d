"""A field that is in no list: whatever is faster than the reference declines it, and planted faults are seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from torch import Tensor
from toy import request, resolved

from outrider.core.draft import ROOT, Draft
from outrider.core.request import ResolvedParams
from outrider.drafters import draft_vocab
from outrider.engine import device_executor
from outrider.sampling import target, warp
from outrider.sampling.history import History
from outrider.sampling.noise import gumbel
from outrider.sampling.target import target_rows

VOCAB = 64
DRAFT = Draft([3, 5], [ROOT, 0], [0.9, 0.9])


@dataclass(frozen=True, slots=True, kw_only=True)
class NovelParams(ResolvedParams):
    odd_only: bool = False
    """Every token is an odd number: what a family of parameters grows by tomorrow."""


def novel(odd_only: bool = True, **options: Any) -> NovelParams:
    known = resolved(VOCAB, seed=3, **options)
    return NovelParams(**{f.name: getattr(known, f.name) for f in fields(known) if f.init}, odd_only=odd_only)


def process(z: Tensor, params: ResolvedParams, history: History, paths: Sequence[Sequence[int]]) -> None:
    z[:, ::2] = -torch.inf


def truncate(z: Tensor, params: ResolvedParams) -> Tensor:
    z[:, ::2] = -torch.inf
    return z


@pytest.fixture(params=["processor", "truncation"])
def temperature(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """The reference, and nobody else, knows the new field; at which temperature it shows."""
    if request.param == "processor":
        grown = (*warp.PROCESSORS, warp.Processor(frozenset({"odd_only"}), process))
        monkeypatch.setattr(warp, "PROCESSORS", grown)
        return 0.0
    monkeypatch.setattr(warp, "TRUNCATIONS", (*warp.TRUNCATIONS, warp.Truncation("odd_only", truncate)))
    return 1.0


def check_choices(temperature: float) -> None:
    """Of two requests that differ in nothing else, chosen for one by one and all at once: by the definition."""
    odd = (True, False)
    both = [request([1, 2], novel(odd_only, temperature=temperature), []) for odd_only in odd]
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(1))
    logits[:, ::2] += 8.0  # who ignores the field chooses an even one
    for ahead in (False, True):
        found = target_rows(logits, both, [DRAFT, DRAFT])
        if ahead:  # as where there is no compiled sampler
            found = [
                target.TargetRows(logits, seq.params, seq.history, DRAFT, first)
                for seq, first in zip(both, (0, 3), strict=True)
            ]
            target._settle(found, logits)
        for seq, odd_only, rows, first in zip(both, odd, found, (0, 3), strict=True):
            for node in range(ROOT, len(DRAFT)):
                path = list(DRAFT.tokens[: node + 1])
                scores = warp.warp(logits[first + 1 + node][None], seq.params, seq.history, [path])[0]
                if temperature:
                    scores = scores + gumbel(seq.params.seed, seq.params.choice, len(path), VOCAB)
                assert rows.choose(node) == int(scores.argmax())
                assert rows.choose(node) % 2 == odd_only


def test_every_way_to_choose_declines_a_parameter_it_does_not_know(temperature: float) -> None:
    check_choices(temperature)


@pytest.mark.parametrize(
    ("temperature", "fault"),
    [("processor", "_UNPROCESSED"), ("truncation", "_COMPILED"), ("truncation", "_TOGETHER")],
    indirect=["temperature"],
)
def test_one_that_takes_it_unknowingly_is_seen(temperature: float, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, fault, getattr(target, fault) | {"odd_only"})
    with pytest.raises(AssertionError):
        check_choices(temperature)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_neither_the_device_nor_a_ranking_head_takes_what_they_do_not_know(temperature: float) -> None:
    for odd in (False, True):
        params = novel(odd, temperature=temperature)
        assert device_executor.steppable(params) is not odd
        assert draft_vocab.plainly_ranked(params, 0) is not odd


def test_a_field_without_a_neutral_value_is_always_a_feature() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Unfinished(ResolvedParams):
        sharpness: float

    known = resolved(VOCAB, temperature=0.0)
    values = {f.name: getattr(known, f.name) for f in fields(known) if f.init}
    assert Unfinished(**values, sharpness=0.0).features == {"sharpness"}
    assert known.features == frozenset()


def test_the_reference_knows_every_parameter() -> None:
    names = {f.name for f in fields(ResolvedParams) if f.init}
    assert names == ResolvedParams.EVERYWHERE | warp.PROCESSED | warp.TRUNCATED | warp.REPORTED | {"verify"}
