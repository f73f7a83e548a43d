"""The target's rows: choices, batches, and reported log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from toy import Sequence_, request, resolved

from outrider.core.draft import ROOT, Draft
from outrider.core.request import Forced
from outrider.errors import ModelError
from outrider.sampling import target
from outrider.sampling.noise import gumbel
from outrider.sampling.random_source import KeyedRandom
from outrider.sampling.target import TargetRows, target_rows
from outrider.sampling.warp import warp
from outrider.verify import RULES

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
VOCAB = 300
TREE = Draft([4, 7, 9, 4, 1], [ROOT, ROOT, 0, 2, 1])
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.4},
    {"temperature": 0.0, "min_tokens": 4, "eos": [2, 3]},
    {"temperature": 0.0, "verify": "rejection"},
    {"temperature": 0.9},
    {"temperature": 0.9, "verify": "rejection"},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.8, "frequency_penalty": 0.5},
    {"temperature": 1.0, "min_p": 0.1, "logit_bias": {4: 3.0}},
]


def logits_of(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def batch(device: str = "cpu") -> tuple[Tensor, list[Sequence_], list[Draft]]:
    drafts = [TREE, Draft(), Draft([1, 2], [ROOT, 0])]
    requests, chosen = [], []
    for i, options in enumerate(OPTIONS):
        requests.append(request([5, 6], resolved(VOCAB, seed=i, **options), [7, 1][: i % 3]))
        chosen.append(drafts[i % 3])
    return logits_of(sum(1 + len(d) for d in chosen)).to(device), requests, chosen


@pytest.mark.parametrize("device", DEVICES)
def test_choices_are_the_definition(device: str) -> None:
    """argmax of log-probability + noise at the node's own position; temperature 0 without noise."""
    logits, requests, drafts = batch(device)
    start = 0
    for rows, seq, draft in zip(target_rows(logits, requests, drafts), requests, drafts, strict=True):
        for node in range(ROOT, len(draft)):
            path = [draft.tokens[i] for i in draft.path(node)]
            logp = warp(logits[start + 1 + node].unsqueeze(0), seq.params, seq.history, [path])[0]
            assert torch.equal(rows.logp(node), logp)
            if seq.params.temperature > 0:
                position = seq.generated + len(path)
                logp = logp + gumbel(seq.params.seed, seq.params.choice, position, VOCAB, device)
            assert rows.choose(node) == int(logp.argmax())
        start += 1 + len(draft)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("where", [ROOT, 1])
def test_scores_that_are_no_numbers_are_refused(where: int, options: dict[str, Any], device: str) -> None:
    """By either rule, wherever on the accepted path they stand; no token is made up."""
    logits = torch.full((3, VOCAB), -5.0, device=device)
    logits[0, 8] = logits[1, 9] = 200.0  # the draft is accepted up to where nothing can be said
    logits[1 + where, 17] = math.nan
    seq, draft = request([5, 6], resolved(VOCAB, **options)), Draft([8, 9], [ROOT, 0], [0.1, 0.1])
    rows = target_rows(logits, [seq], [draft])[0]
    with pytest.raises(ModelError, match="not numbers"):
        RULES[seq.params.verify](draft, rows, KeyedRandom(0, 0, 0))


def test_a_batch_equals_its_sequences_one_by_one() -> None:
    logits, requests, drafts = batch()
    start = 0
    for rows, seq, draft in zip(target_rows(logits, requests, drafts), requests, drafts, strict=True):
        alone = target_rows(logits[start : start + 1 + len(draft)], [seq], [draft])[0]
        for node in range(ROOT, len(draft)):
            assert rows.choose(node) == alone.choose(node)
        start += 1 + len(draft)


def test_all_plain_greedy_is_the_argmax_of_the_logits() -> None:
    params = resolved(VOCAB, temperature=0)
    requests = [request([1], params), request([2], params)]
    logits = logits_of(7)
    logits[3] = 1.0  # all equal: the lowest id
    first, second = target_rows(logits, requests, [TREE, Draft()])
    assert [first.choose(node) for node in range(ROOT, 5)] == logits[:6].argmax(-1).tolist()
    assert first.choose(2) == 0
    assert second.choose(ROOT) == int(logits[6].argmax())


def test_greedy_sequences_keep_their_order_whatever_else_they_ask() -> None:
    """Top-k means nothing at temperature 0, so it must not sort the requests either."""
    options: list[dict[str, Any]] = [{"top_k": 5}, {}, {"top_k": 5}, {"top_p": 0.5}]
    requests = [request([1], resolved(VOCAB, temperature=0, **option)) for option in options]
    logits = logits_of(4)
    rows = target_rows(logits, requests, [Draft()] * 4)
    assert [row.choose(ROOT) for row in rows] == logits.argmax(-1).tolist()


@pytest.mark.parametrize("elements", [1, 7 * VOCAB, 1 << 25])
def test_choices_made_together_are_those_made_alone(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does for a whole batch, in lots of any size, against one node at a time."""
    monkeypatch.setattr(target, "_ELEMENTS", elements)
    logits, requests, drafts = batch()
    logits, requests, drafts = logits.repeat(2, 1), requests * 2, drafts * 2
    rows = target_rows(logits, requests, drafts)
    lots = list(target._batches(rows, VOCAB))
    assert sorted(map(id, rows)) == sorted(id(row) for lot in lots for row in lot)
    assert (len(lots) == len(rows)) == (elements == 1)
    for lot in lots:
        together = target._choices([(row, row.nodes) for row in lot]).tolist()
        assert together == [row.choose(node) for row in lot for node in row.nodes]


def test_choices_of_one_seed_differ() -> None:
    logits, draft = logits_of(1), Draft()

    def choose(choice: int) -> int:
        params = resolved(VOCAB, temperature=2.0)
        object.__setattr__(params, "choice", choice)
        return TargetRows(logits, params, request([1], params).history, draft).choose(ROOT)

    assert len({choose(choice) for choice in range(20)}) > 5


def test_rows_are_stale_once_the_sequence_moves_on() -> None:
    seq = request([1], resolved(VOCAB, temperature=1.0))
    rows = target_rows(logits_of(1), [seq], [Draft()])[0]
    seq.push([3])
    with pytest.raises(RuntimeError, match="moved on"):
        rows.choose(ROOT)


def test_raw_logprobs() -> None:
    params = resolved(VOCAB, temperature=0.5, top_k=3, repetition_penalty=2.0, logprobs=4)
    seq = request([5], params)
    logits = logits_of(6)
    got = target_rows(logits, [seq], [TREE])[0].logprobs(2, 17)
    want = torch.log_softmax(logits[3].double(), -1)
    assert got.token_id == 17
    assert got.logprob == pytest.approx(float(want[17]), abs=1e-12)
    values, ids = want.topk(4)
    assert [token for token, _ in got.top] == ids.tolist()
    assert [value for _, value in got.top] == pytest.approx(values.tolist(), abs=1e-12)


def test_processed_logprobs_and_log_zero() -> None:
    params = resolved(4, temperature=0.5, top_k=2, logprobs=3, processed_logprobs=True)
    rows = target_rows(torch.tensor([[0.0, 2.0, 1.0, -1.0]]), [request([0], params)], [Draft()])[0]
    high = -math.log1p(math.exp(-2.0))
    assert rows.logprobs(ROOT, 1).logprob == pytest.approx(high)
    assert rows.logprobs(ROOT, 3).logprob == -9999.0
    assert [token for token, _ in rows.logprobs(ROOT, 1).top] == [1, 2, 0]
    assert rows.logprobs(ROOT, 1).top[2][1] == -9999.0


def test_zero_alternatives_and_tied_ones() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0]])
    only = target_rows(logits, [request([0], resolved(4, logprobs=0))], [Draft()])[0]
    assert only.logprobs(ROOT, 2).top == ()
    two = target_rows(logits, [request([0], resolved(4, logprobs=2))], [Draft()])[0]
    assert [token for token, _ in two.logprobs(ROOT, 2).top] == [1, 2]


class Masks:
    """A grammar that forbids at random, by path; of one path everything, of another all that has a chance."""

    def start(self) -> Masks:
        return self

    def advance(self, tokens: Sequence[int]) -> None:
        pass

    def allowed(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        if list(path) == [7]:
            return None
        mask = np.random.default_rng([len(path), *path]).random(VOCAB) < 0.1
        mask[-20:] = list(path) == [4]
        mask[:-20] &= list(path) != [4]
        return mask

    def forced(self, path: Sequence[int] = ()) -> Forced:
        return Forced()

    def likely(self, mask: NDArray[np.bool_]) -> Sequence[int]:
        return ()

    def legal(self, draft: Draft) -> list[int]:
        return list(range(len(draft)))

    def limit(self, path: Sequence[int]) -> str | None:
        return None


@pytest.mark.parametrize("options", [*OPTIONS, {"temperature": 0.7, "top_p": 0.9}, {"logprobs": 2}], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_choices_under_a_grammar_are_the_definition(options: dict[str, Any], seed: int) -> None:
    """Where nothing but a grammar shapes the logits they are masked as they are: that must change no choice."""
    logits = logits_of(1 + len(TREE), seed)
    logits[:, -20:] = -math.inf
    params = replace(resolved(VOCAB, **{"seed": seed, **options}), grammar=Masks())
    seq = request([5, 6], params)
    rows = target_rows(logits, [seq], [TREE])[0]
    for node in range(ROOT, len(TREE)):
        path = [TREE.tokens[i] for i in TREE.path(node)]
        logp = warp(logits[1 + node].unsqueeze(0), params, seq.history, [path])[0]
        if params.temperature > 0:
            logp = logp + gumbel(params.seed, params.choice, len(path), VOCAB, "cpu")
        assert rows.choose(node) == int(logp.argmax())
