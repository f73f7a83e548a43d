"""best_of: several are drawn, and the likeliest told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from live_server import Live, live_server
from tiny_llm import tiny_llm


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_server(tiny_llm(tmp_path_factory.mktemp("tiny"), also="available", dtype="fp32")) as server:
        yield server


def ask(live: Live, **more: Any) -> Any:
    prompts = [[30, 31, 32], [40, 41]]
    answer = live.post("/v1/completions", prompt=prompts, max_tokens=12, temperature=1, seed=5, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_likeliest_of_those_drawn_are_told(live: Live) -> None:
    every = ask(live, n=6, logprobs=0)
    ranked = []
    for group in (every["choices"][:6], every["choices"][6:]):
        assert len({choice["text"] for choice in group}) > 1, "no test"
        scores = [choice["logprobs"]["token_logprobs"] for choice in group]
        order = sorted(range(6), key=lambda i: -sum(scores[i]) / len(scores[i]))
        ranked += [group[i]["text"] for i in order[:2]]
    best = ask(live, n=2, best_of=6)
    assert [choice["text"] for choice in best["choices"]] == ranked
    assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in best["choices"])
    assert best["usage"] == every["usage"], "all that were drawn are paid for"


def test_as_many_as_are_told_are_told_in_order(live: Live) -> None:
    assert [each["text"] for each in ask(live, n=3, best_of=3)["choices"]] == [
        each["text"] for each in ask(live, n=3)["choices"]
    ]
