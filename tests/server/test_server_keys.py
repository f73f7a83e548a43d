"""Named API keys: who gets in, how much each may use, and that no name learns anything of another's prompts."""

from __future__ import annotations

import hashlib
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_server import PATIENCE, Live, live_server, logged
from tiny_llm import tiny_llm

from outrider import LLM
from outrider.cli.main import main
from outrider.errors import InvalidRequest
from outrider.server.errors import ApiError
from outrider.server.keys import ApiKey, KeyFile
from outrider.server.rates import Meter

GUESSES = 200
DRAWN = random.Random(5)
"""Secrets, never the same twice, and for every run the same: two of them begin alike now and then."""
KEYS = f"""
[ann]
key = "ann's key"
[eve]
sha256 = "{hashlib.sha256(b"eve's key").hexdigest()}"
[ops]
key = "ops's key"
admin = true
[bob]
key = "bob's key"
requests_per_minute = 2
[tom]
key = "tom's key"
tokens_per_minute = 10
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    return path


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return tiny_llm(tmp_path_factory.mktemp("tiny"), also="available", dtype="fp32")


@pytest.fixture(scope="module")
def live(llm: LLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(KEYS)
    with live_server(llm, keys=KeyFile(path)) as server:
        yield server


def post(live: Live, who: str, prompt: list[int], **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {who}"}
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True, **more}
    return live.http.post("/v1/completions", json=body, headers=headers)


def ask(live: Live, who: str, prompt: list[int], **more: Any) -> dict[str, Any]:
    answer = post(live, f"{who}'s key", prompt, **more)
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    return whole


def code() -> str:
    return f"{DRAWN.getrandbits(32):08x}"


def prompt() -> list[int]:
    return [20 + DRAWN.randrange(200) for _ in range(40)]


class Observer:
    """Counts what a request has the model run: what its time depends on."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._model = live.llm.engine.model
        self._forward = self._model.forward
        self.rows = 0

    def __enter__(self) -> Observer:
        def counting(batch: Any) -> Any:
            self.rows += sum(len(rows.tokens) for rows in batch)
            return self._forward(batch)

        self._model.forward = counting  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        del self._model.forward

    def learned(self, who: str, guess: list[int]) -> tuple[Any, ...]:
        """All that `who` finds out by a guess, and more: every row that was run, and what the usage says."""
        before = self.rows
        usage = ask(self._live, who, guess, outrider={"speculate": False})["usage"]
        assert self._live.settled()
        return self.rows - before, usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("guesser", ["eve", "ann"])
def test_guesses_at_the_prompts_of_another_name_are_no_better_than_chance(live: Live, guesser: str) -> None:
    """Each time a guess is what Ann has sent, or not, by the toss of a coin. The best rule there could be for what is
    seen then tells right from wrong as often as the coin allows; for Ann's own key, always."""
    coin = random.Random(7)
    seen: Counter[tuple[bool, tuple[Any, ...]]] = Counter()
    with Observer(live) as observer:
        for _ in range(GUESSES):
            secret = prompt()
            ask(live, "ann", secret)
            right = coin.random() < 0.5
            guess = secret if right else [*secret[:-20], *prompt()[-20:]]
            seen[right, observer.learned(guesser, guess)] += 1
    views = {view for _, view in seen}
    best = sum(max(seen[True, view], seen[False, view]) for view in views)
    assert best > 0.95 * GUESSES if guesser == "ann" else best < 0.6 * GUESSES, seen


@pytest.mark.parametrize("guesser", ["eve", "ann"])
def test_guesses_at_the_schemas_of_another_name_are_no_better_than_chance(
    live: Live, guesser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling one takes up to seconds, so that the first token tells whether it was there already."""
    pytest.importorskip("llguidance")
    grammars = live.llm.requests.grammars
    compiled: list[Any] = []
    build = grammars._build

    def counted(grammar: Any) -> Any:
        compiled.append(grammar)
        return build(grammar)

    monkeypatch.setattr(grammars, "_build", counted)
    coin = random.Random(8)
    seen: Counter[tuple[bool, int]] = Counter()
    for _ in range(GUESSES):
        secret = code()
        right = coin.random() < 0.5
        ask(live, "ann", [30, 31], guided_json={"const": secret})
        before = len(compiled)
        ask(live, guesser, [30, 31], guided_json={"const": secret if right else code()})
        seen[right, len(compiled) - before] += 1
    best = sum(max(seen[True, view], seen[False, view]) for view in {view for _, view in seen})
    assert best > 0.95 * GUESSES if guesser == "ann" else best < 0.6 * GUESSES, seen
    assert len(grammars._compiled) <= 64, "and what is kept has an end"


def test_cached_tokens_are_told_of_ones_own_requests_alone(live: Live) -> None:
    def cached(who: str, tokens: list[int], **more: Any) -> int:
        told = ask(live, who, tokens, **more)["usage"]
        assert told["prompt_tokens_details"]["cached_tokens"] <= told["prompt_tokens"]
        return int(told["prompt_tokens_details"]["cached_tokens"])

    mine = prompt()
    assert cached("ann", mine) == 0
    assert cached("eve", mine) == 0
    assert cached("eve", mine, cache_salt="a word") == 0
    assert cached("eve", mine, cache_salt="a word") == 39
    assert cached("ann", mine) == 39
    assert cached("eve", mine, n=3) == 39


def test_only_admins_see_what_was_reused(live: Live) -> None:
    def page(who: str) -> str:
        return live.http.get("/metrics", headers={"authorization": f"Bearer {who}'s key"}).text

    asked = prompt()
    for _ in range(2):
        ask(live, "ann", asked, n=3)
    ask(live, "eve", asked)
    assert "prefix" not in page("ann")
    assert live.http.get("/metrics").status_code == 401
    for told in (page("ops"), httpx.get(f"{live.watched}/metrics", timeout=PATIENCE).text):
        values = {line.split("{")[0]: float(line.split()[-1]) for line in told.splitlines() if not line.startswith("#")}
        hits, prompts = values["outrider:prefix_cache_hits_total"], values["outrider:prompt_tokens_total"]
        assert 0 < hits < values["outrider:prefix_cache_queries_total"] == prompts


def test_the_port_for_metrics_has_nothing_else(live: Live) -> None:
    assert httpx.get(f"{live.watched}/health", timeout=PATIENCE).json() == {"status": "ready"}
    for path in ("/v1/models", "/", "/docs"):
        assert httpx.get(live.watched + path, timeout=PATIENCE).status_code == 404
    assert httpx.post(f"{live.watched}/v1/completions", json={"prompt": "x"}, timeout=PATIENCE).status_code == 404


def test_names_are_in_the_log_and_keys_are_not(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "outrider.server")
    answer = post(live, "ann's key", prompt())
    assert logged(caplog, answer)["principal"] == "ann"
    refused = post(live, "no key of anybody", prompt())
    assert refused.status_code == 401
    assert "principal" not in logged(caplog, refused)
    assert "key" not in caplog.text


def test_requests_a_minute(live: Live) -> None:
    assert [post(live, "bob's key", [30, 31]).status_code for _ in range(2)] == [200, 200]
    refused = post(live, "bob's key", [30, 31])
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert 0 < int(refused.headers["retry-after"]) <= 30
    assert post(live, "ann's key", [30, 31]).status_code == 200


def test_tokens_a_minute(live: Live) -> None:
    assert post(live, "tom's key", prompt(), max_tokens=8).status_code == 200, "it may turn out to be more"
    refused = post(live, "tom's key", [30])
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 180, "48 tokens at 10 a minute"


def test_what_was_spent_comes_back_at_the_rate_of_the_key() -> None:
    clock, key = Clock(), ApiKey("ann", requests_per_minute=60, tokens_per_minute=600)
    meter = Meter(clock)
    for _ in range(60):
        meter.begin(key)
    with pytest.raises(ApiError, match="60 requests a minute") as refused:
        meter.begin(key)
    assert refused.value.retry_after == pytest.approx(1)
    clock.now += 1
    meter.begin(key)
    clock.now += 600
    meter.begin(key)
    meter.spend(key, 1199)
    with pytest.raises(ApiError, match="600 tokens a minute") as refused:
        meter.begin(key)
    assert refused.value.retry_after == pytest.approx(60)
    meter.begin(ApiKey("ann", requests_per_minute=60, tokens_per_minute=6000))  # the limits are those of now


def test_the_file_is_read_again_when_it_changes(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    keys = KeyFile(file, clock)
    assert keys.find(b"eve's key") == ApiKey("eve")
    file.write_text('[ann]\nkey = "another"\nadmin = true\n')
    assert keys.find(b"ann's key") == ApiKey("ann"), "it is looked at once a second"
    clock.now += 1
    assert (keys.find(b"ann's key"), keys.find(b"another")) == (None, ApiKey("ann", admin=True))
    for broken in ("[ann\n", "", "[ann]\n", None):
        file.unlink() if broken is None else file.write_text(broken)
        os.utime(file.parent)
        clock.now += 1
        caplog.clear()
        assert keys.find(b"another") == ApiKey("ann", admin=True), "the keys stay as they were"
        assert "left unread" in caplog.text
    file.write_text(KEYS)
    clock.now += 1
    assert keys.find(b"another") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ann", "not TOML"),
        ("", "has no keys"),
        ("ann = 5", "must be a table"),
        ('["an n"]\nkey = "k"', "must be a table whose name"),
        ("[ann]", "either key or sha256"),
        ('[ann]\nkey = "k"\nsha256 = "k"', "either key or sha256"),
        ("[ann]\nkey = 5", "a key that is text"),
        ('[ann]\nkey = ""', "a key that is text"),
        ('[ann]\nsha256 = "abc"', "64 hexadecimal digits"),
        ('[ann]\nkey = "k"\nadmin = 1', "true or false"),
        ('[ann]\nkey = "k"\ntokens_per_minute = 0', "whole number from 1 on"),
        ('[ann]\nkey = "k"\nrequests_per_minute = true', "whole number from 1 on"),
        ('[ann]\nkey = "k"\nlimit = 5', "'limit', which is none of"),
        ('[ann]\nkey = "k"\n[eve]\nkey = "k"', "ann and eve have the same key"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=said):
        KeyFile(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        KeyFile(tmp_path / "none")


@pytest.mark.parametrize("key", ["", " x", "x\n"])
def test_a_key_that_is_none_opens_nothing(
    key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a variable that a script failed to set: no server that lets everybody in, nor one that lets nobody in."""
    monkeypatch.setenv("OUTRIDER_API_KEY", key)
    monkeypatch.setattr("sys.argv", ["outrider", "serve", "--port", "0"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "api-key: it is empty or has space around it" in capsys.readouterr().err
