"""What one client can learn of what another has sent: nothing, unless they share a salt."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import playground_site
import pytest
from live_server import Live, live_server

from outrider import LLM
from outrider.server.keys import KeyFile, OneKey, trust

BEGIN = "The code of the northern station, which is told to nobody who has no business there, is "

DRAWN = random.Random(5)
"""Never the same twice, and for every run the same."""


def token(size: int) -> str:
    """So many bytes that nobody has sent yet."""
    return DRAWN.randbytes(size).hex()


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(drafter="suffix", also="available", draft_length=4, remember=True, max_batch=4, max_context=160)


@pytest.fixture(scope="module")
def live(llm: LLM) -> Iterator[Live]:
    with live_server(llm) as server:
        yield server


def ask(live: Live, prompt: str, salt: str | None = None, **more: Any) -> dict[str, Any]:
    given = {} if salt is None else {"cache_salt": salt}
    headers = {"authorization": f"Bearer {more.pop('key')}"} if "key" in more else {}
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True, **given, **more}
    answer = live.http.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    return whole


def reused(live: Live) -> int:
    return live.llm.engine.stats.prefix_tokens


@pytest.mark.parametrize(
    ("first", "second"), [("ann", "ann"), (None, None), ("ann", "bob"), ("ann", None), (None, "ann")]
)
def test_requests_of_one_salt_share_and_others_do_not(live: Live, first: str | None, second: str | None) -> None:
    begin = f"Note {token(8)}: {BEGIN}"
    before = reused(live)
    one = ask(live, begin + "secret.", first, max_tokens=12)
    assert reused(live) == before
    other = ask(live, begin + "secret.", second, max_tokens=12)
    assert (reused(live) > before) == (first == second)
    assert one["choices"][0]["text"] == other["choices"][0]["text"]


def test_what_was_answered_is_looked_up_by_its_own_salt_alone(live: Live) -> None:
    """With --remember; the first answer of a salt is drafted as if nobody had ever asked."""
    ann, bob = token(8), token(8)
    first, other, again = (
        ask(live, "The first colours of the rainbow are", salt, max_tokens=24)["metrics"]["speculative_decoding"]
        for salt in (ann, bob, ann)
    )
    assert other == first
    assert again["steps"] < first["steps"]


def test_choices_and_the_next_turn_still_share(live: Live) -> None:
    before = reused(live)
    ask(live, f"{token(4)} {BEGIN}", "ann", n=3)
    assert reused(live) > before


def test_with_a_key_its_holders_share(llm: LLM) -> None:
    begin = f"{token(8)} {BEGIN}"
    with live_server(llm, api_key="k") as locked:
        before = reused(locked)
        ask(locked, begin, key="k")
        ask(locked, begin, "ann", key="k")
        assert reused(locked) == before
        ask(locked, begin, key="k")
        assert reused(locked) > before


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (None, "all callers are one trust domain: requests without cache_salt reuse what everybody sent"),
        (OneKey("k"), "all callers are one trust domain: requests without cache_salt reuse what all who have the key"),
        (["ann"], "all callers are one trust domain: requests without cache_salt reuse what all who have the key"),
        (["ann", "eve"], "2 keys: each is a trust domain of its own"),
    ],
)
def test_who_shares_is_said(keys: Any, said: str, tmp_path: Path) -> None:
    if isinstance(keys, list):
        (tmp_path / "keys").write_text("".join(f"[{name}]\nkey = '{name}'\n" for name in keys))
        keys = KeyFile(tmp_path / "keys")
    assert trust(keys).startswith(said)


def test_who_shares_is_said_at_the_start(capfd: pytest.CaptureFixture[str]) -> None:
    with playground_site.live("--max-context", "64"):
        pass
    said = [line for line in capfd.readouterr().err.splitlines() if "cache_salt" in line]
    assert len(said) == 1
    assert "one trust domain" in said[0]


@pytest.mark.parametrize("salt", ["", 5, ["ann"], "a" * 2000])
def test_salts_that_are_none(live: Live, salt: Any) -> None:
    answer = live.post("/v1/completions", prompt="x", max_tokens=1, cache_salt=salt)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "cache_salt"


def page(live: Live) -> dict[str, float]:
    """All that /metrics says, but for times."""
    lines = [line.rpartition(" ") for line in live.http.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines if "_seconds" not in name and "_created" not in name}


def told(live: Live, prompt: str) -> str:
    """Everything but times that a client finds out by a request: its answer, and what it changes on /metrics."""
    before = page(live)
    answer = ask(live, prompt)
    after = page(live)
    facts = {"usage": answer["usage"], "counts": answer["metrics"]["speculative_decoding"]}
    return json.dumps([facts, {name: after[name] - before.get(name, 0) for name in after}], sort_keys=True)


def test_a_code_cannot_be_guessed_digit_by_digit(live: Live) -> None:
    """The worst case: no key, no salts. Ten guesses a digit, and a right one must look like a wrong one."""
    code = "".join(DRAWN.choice("0123456789") for _ in range(4))
    ask(live, f"{BEGIN}{code}. Keep it.")
    for place in range(4):
        learned = {told(live, f"{BEGIN}{code[:place]}{digit}") for digit in "0123456789"}
        assert len(learned) == 1, f"digit {place + 1} was given away"
    assert "prefix" not in live.http.get("/metrics").text
