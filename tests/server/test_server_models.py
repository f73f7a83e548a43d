"""Several models behind one server: loaded when asked for, unloaded when idle."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, Literal

import httpx
import pytest
from live_server import PATIENCE, Live, live_server, soon
from tiny_llm import tiny_gguf

from outrider import LLM
from outrider.errors import ModelError
from outrider.server import backend, routes
from outrider.server.backend import Backend
from outrider.server.translate import prepare_completion

OPTIONS: dict[str, Any] = {"also": "available", "dtype": "fp32", "drafter": "suffix", "draft_length": 4, "max_batch": 3}


class Maker:
    """Loads a tiny model, and remembers those it has loaded. Their passes wait for `may_run`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.made: list[weakref.ref[Any]] = []
        self.may_run = Event()
        self.may_run.set()

    def __call__(self) -> LLM:
        llm = LLM(str(self._path), **OPTIONS)
        forward: Any = llm.model.forward

        def held(batch: Any) -> Any:
            assert self.may_run.wait(PATIENCE)
            return forward(batch)

        llm.model.forward = held  # type: ignore[method-assign]
        self.made.append(weakref.ref(llm.model))
        return llm


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def other(path: Path) -> Maker:
    return Maker(path)


@pytest.fixture
def serve(path: Path, other: Maker) -> Callable[..., Any]:
    def broken() -> LLM:
        raise ModelError("no such weights")

    llm = LLM(str(path), **OPTIONS)
    others = [Backend("other", other, max_queue=8), Backend("broken", broken, max_queue=8)]
    return lambda idle=None: live_server(llm, others=others, idle=idle)


def ask(live: Live, model: str, **more: Any) -> httpx.Response:
    body = {"prompt": [30, 31, 32], "max_tokens": 8, "temperature": 0, "ignore_eos": True, "model": model, **more}
    return live.http.post("/v1/completions", json=body)


def statuses(live: Live) -> dict[str, str]:
    return {card["id"]: card["status"] for card in live.http.get("/v1/models").json()["data"]}


def test_another_model_is_loaded_once_when_it_is_asked_for(serve: Callable[..., Any], other: Maker) -> None:
    with serve() as live:
        assert statuses(live) == {"smollm2-135m": "ready", "other": "unloaded", "broken": "unloaded"}

        async def three() -> list[httpx.Response]:
            async with httpx.AsyncClient(base_url=live.url, timeout=60) as client:
                body = {"prompt": [30, 31, 32], "max_tokens": 8, "temperature": 0, "model": "other"}
                return await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(3)))

        answers = asyncio.run(three())
        assert [answer.status_code for answer in answers] == [200] * 3
        assert {answer.json()["model"] for answer in answers} == {"other"}
        assert len(other.made) == 1
        assert statuses(live)["other"] == "ready"
        assert ask(live, "other").json()["choices"] == ask(live, "smollm2-135m").json()["choices"]
        assert ask(live, "another").status_code == 404
        tokens = [line for line in live.http.get("/metrics").text.splitlines() if "generation_tokens_total{" in line]
        assert {line.split('"')[1] for line in tokens} == {"smollm2-135m", "other", "broken"}


def test_cards_say_what_a_model_can_do(serve: Callable[..., Any]) -> None:
    with serve() as live:
        card = live.http.get("/v1/models/smollm2-135m").json()
        assert card == live.http.get("/v1/models").json()["data"][0]
        assert {"completion", "logprobs"} <= set(card["capabilities"])
        assert ("chat" in card["capabilities"]) == (live.llm.tokenizer.chat_template is not None)
        assert "capabilities" not in live.http.get("/v1/models/other").json(), "nobody knows yet"


def test_what_nobody_uses_is_unloaded_and_comes_back(serve: Callable[..., Any], other: Maker) -> None:
    with serve(idle=0.4) as live:
        first = ask(live, "other").json()["choices"]
        assert soon(lambda: statuses(live)["other"] == "unloaded")
        assert soon(lambda: other.made[0]() is None), "its memory is free"
        assert "capabilities" in live.http.get("/v1/models/other").json(), "what was known stays known"
        assert live.http.get("/health").json() == {"status": "ready"}
        assert ask(live, "other").json()["choices"] == first
        assert len(other.made) == 2


class _Slow:
    """Garbage whose end takes as long as `may_end` says, and the collection that found it, as long."""

    def __init__(self, found: Event, may_end: Event) -> None:
        self.me, self.found, self.may_end = self, found, may_end

    def __del__(self) -> None:
        self.found.set()
        self.may_end.wait(PATIENCE)


def test_memory_is_free_also_where_another_thread_was_just_collecting(
    serve: Callable[..., Any], other: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, may_end, attempts, asked = Event(), Event(), 0, backend._collect

    def noted() -> bool:
        nonlocal attempts
        attempts += 1
        return asked()

    monkeypatch.setattr(backend, "_collect", noted)

    def collect() -> None:
        while not found.is_set():  # where another thread is at it, this call does nothing
            gc.collect()

    gc.disable()  # or a collection of its own accord finds the garbage, and holds up whichever thread that was
    try:
        _Slow(found, may_end)
        collecting = Thread(target=collect)
        collecting.start()
        assert found.wait(PATIENCE)
    finally:
        gc.enable()
    with serve(idle=0.4) as live:  # not before: it collects as soon as its own model is idle
        assert ask(live, "other").status_code == 200
        assert soon(lambda: statuses(live)["other"] == "unloaded")
        assert soon(lambda: attempts > 2 * backend._COLLECTIONS), "for this model, and for the server's own"
        assert other.made[0]() is not None, "nothing is collected meanwhile"
        may_end.set()
        collecting.join()
        assert soon(lambda: other.made[0]() is None)


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Requests for text are read no further until it is set."""
    may_go_on = Event()

    def slowly(*given: Any) -> Any:
        assert may_go_on.wait(PATIENCE)
        return prepare_completion(*given)

    monkeypatch.setattr(routes, "prepare_completion", slowly)
    return may_go_on


@pytest.mark.parametrize("where", ["reading", "running"])
def test_what_is_in_use_is_not_unloaded(
    serve: Callable[..., Any], other: Maker, reading: Event, where: Literal["reading", "running"]
) -> None:
    """Though it takes long to read the request, or to answer it."""
    for may_go_on in (reading, other.may_run):
        may_go_on.set()
    held = reading if where == "reading" else other.may_run
    held.clear()
    idle = 0.4
    with serve(idle=idle) as live, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, live, "other")
        try:
            assert soon(lambda: statuses(live)["other"] == "ready")
            time.sleep(3 * idle)
            assert statuses(live)["other"] == "ready"
        finally:
            held.set()
        assert asked.result().status_code == 200
        assert len(other.made) == 1


def test_a_model_that_cannot_be_loaded_leaves_the_others_alone(serve: Callable[..., Any]) -> None:
    with serve() as live:
        assert ask(live, "broken").status_code == 503
        assert statuses(live)["broken"] == "failed"
        assert ask(live, "smollm2-135m").status_code == 200


def test_others_stand_still_while_one_is_measured(serve: Callable[..., Any]) -> None:
    with serve() as live:
        passes = 0
        model = live.llm.engine.model
        forward = model.forward

        def counting(batch: Any) -> Any:
            nonlocal passes
            passes += 1
            time.sleep(0.005)
            return forward(batch)

        model.forward = counting
        body = {"prompt": [30], "max_tokens": 100, "ignore_eos": True, "stream": True, "outrider": {"speculate": False}}
        with live.http.stream("POST", "/v1/completions", json=body) as stream:
            next(lines := stream.iter_lines())
            with live.models.quiet():
                before = passes
                time.sleep(0.1)
                assert passes == before
            assert "[DONE]" in "".join(lines), "and go on afterwards"
        del model.forward


def test_costs_nobody_knows_are_measured_where_it_is_quiet(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and not between the first steps, when others run."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    entered = []

    @contextmanager
    def quiet() -> Iterator[None]:
        entered.append(True)
        yield

    def known(**more: Any) -> bool:
        belief = LLM(str(path), **{**OPTIONS, "draft_length": "auto"}, **more).engine.controller.belief
        return belief is not None and belief.known

    assert not known()
    assert known(quiet=quiet)
    assert entered == [True]
