"""The warp against plain Python, its tie rules, and its indifference to other rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from enumeration import plain_probabilities
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from toy import resolved

from outrider.sampling.history import History
from outrider.sampling.warp import _nucleus_edge, process, warp

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

OPTIONS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 2.5},
    "greedy": {"temperature": 0.0, "top_k": 3, "top_p": 0.5},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.1},
    "repetition": {"repetition_penalty": 1.3},
    "repetition<1": {"repetition_penalty": 0.8},
    "frequency": {"frequency_penalty": 0.7},
    "presence": {"presence_penalty": 1.1},
    "bias": {"logit_bias": {3: 4.0, 5: -100.0}},
    "min_tokens": {"min_tokens": 6, "eos": [1, 4]},
    "all": {
        "temperature": 0.9,
        "top_k": 12,
        "top_p": 0.9,
        "min_p": 0.02,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.3,
        "presence_penalty": -0.4,
        "logit_bias": {7: 1.0},
        "min_tokens": 5,
        "eos": [2],
    },
}
PROMPT, OUTPUT = [3, 1, 3, 9], [4, 9, 4, 11]
PATHS = [[], [5], [5, 4], [5, 4, 5], [9], [19]]


def history(prompt: list[int] = PROMPT, output: list[int] = OUTPUT) -> History:
    made = History(prompt)
    made.append(output)
    return made


def logits_of(rows: int, vocab: int, seed: int = 0, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPTIONS)
def test_equals_plain_python(name: str, device: str) -> None:
    params = resolved(20, **OPTIONS[name])
    logits = logits_of(len(PATHS), 20)
    p = warp(logits.to(device), params, history(), PATHS).exp().cpu()
    for row, path in enumerate(PATHS):
        want = plain_probabilities(logits[row].tolist(), params, PROMPT, [*OUTPUT, *path])
        assert p[row].tolist() == pytest.approx(want, abs=1e-12)


@settings(max_examples=150, deadline=None)
@given(
    logits=st.lists(st.integers(-8, 8).map(lambda n: n / 2), min_size=2, max_size=9),
    temperature=st.sampled_from([0.0, 0.01, 0.5, 1.0, 3.0]),
    top_k=st.integers(0, 9),
    top_p=st.sampled_from([1e-9, 0.3, 0.77, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.6, 1.0]),
    repetition=st.sampled_from([1.0, 1.5]),
    prompt=st.lists(st.integers(0, 1), max_size=3),
    output=st.lists(st.integers(0, 1), max_size=3),
)
def test_equals_plain_python_with_many_ties(
    logits: list[float],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition: float,
    prompt: list[int],
    output: list[int],
) -> None:
    params = resolved(
        len(logits),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition,
        frequency_penalty=0.25,
    )
    p = warp(torch.tensor([logits]), params, history(prompt, output), [[]])[0].exp().tolist()
    assert p == pytest.approx(plain_probabilities(logits, params, prompt, output), abs=1e-9)


def test_ties_at_an_edge_are_kept_whole() -> None:
    flat = torch.zeros(1, 6)
    for options in ({"top_k": 2}, {"top_p": 0.2}, {"min_p": 1.0}):
        assert warp(flat, resolved(6, **options), History([]), [[]])[0].exp().tolist() == pytest.approx([1 / 6] * 6)
    two = torch.tensor([[2.0, 1.0, 2.0, 1.0, 0.0]])
    kept = warp(two, resolved(5, top_k=3), History([]), [[]])[0] > -math.inf
    assert kept.tolist() == [True, True, True, True, False]


def test_greedy_takes_the_lowest_of_equals() -> None:
    logp = warp(torch.tensor([[1.0, 3.0, 3.0, 0.0]]), resolved(4, temperature=0), History([]), [[]])
    assert logp.tolist() == [[-math.inf, 0.0, -math.inf, -math.inf]]


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-5])
def test_tiny_temperatures_do_not_overflow(temperature: float) -> None:
    logp = warp(torch.tensor([[1.0, 30.0, 2.0]]), resolved(3, temperature=temperature), History([]), [[]])
    assert logp[0].exp().tolist() == [0.0, 1.0, 0.0]


def test_the_logits_are_left_alone() -> None:
    for dtype in (torch.float32, torch.float64):
        logits = logits_of(1, 20).to(dtype)
        before = logits.clone()
        warp(logits, resolved(20, **OPTIONS["all"]), history(), [[]])
        assert torch.equal(logits, before)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("vocab", [37, 49152])
def test_a_row_does_not_depend_on_the_others(name: str, vocab: int, device: str) -> None:
    params = resolved(vocab, **OPTIONS[name])
    paths = [*PATHS, [6], [], [7, 8]]
    # Rows of very different spread, so that some need a wide nucleus and some a narrow one.
    logits = (logits_of(9, vocab, seed=1) * torch.linspace(0.1, 2, 9).unsqueeze(1)).to(device)
    together = warp(logits, params, history(), paths)
    for row, path in enumerate(paths):
        assert torch.equal(warp(logits[row : row + 1], params, history(), [path])[0], together[row])
    order = [4, 0, 8, 2, 7, 1, 6, 3, 5]
    shuffled = warp(logits[order], params, history(), [paths[i] for i in order])
    assert torch.equal(shuffled, together[order])


@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9, 0.99, 0.99999, 1 - 2**-50])
@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 20.0])
def test_the_short_sort_finds_the_edge_of_the_full_sort(top_p: float, spread: float) -> None:
    p = torch.softmax(logits_of(1, 5000, seed=2, spread=spread).double(), -1)[0]
    mass = (p * 2**52).round().long()
    ordered = mass.sort(descending=True).values
    need = int(float(mass.sum()) * top_p)
    full = int(ordered[int((ordered.cumsum(0) < need).sum())])
    assert _nucleus_edge(mass.numpy(), top_p) == full


def test_history_grows_as_if_it_had_always_been_there() -> None:
    """Counted step by step, past several growths of its arrays, it equals one made at once."""
    tokens = torch.randint(0, 400, (900,), generator=torch.Generator().manual_seed(3)).tolist()
    grown = History(tokens[:100])
    for start in range(100, 900, 7):
        grown.append(tokens[start : start + 7])
    at_once = history(tokens[:100], tokens[100:])
    params = resolved(400, repetition_penalty=1.3, frequency_penalty=0.1, presence_penalty=0.2)
    logits = logits_of(2, 400)
    paths = [[], [399, 5, 5]]
    assert grown.generated == 800
    assert torch.equal(process(logits, params, grown, paths), process(logits, params, at_once, paths))
    for row, path in enumerate(paths):
        output = [*tokens[100:], *path]
        want = plain_probabilities(logits[row].tolist(), params, tokens[:100], output)
        assert warp(logits, params, grown, paths)[row].exp().tolist() == pytest.approx(want, abs=1e-12)
