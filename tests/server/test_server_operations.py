"""What those who run a server need: who asked, what went wrong, and counts that add up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from threading import Event
from typing import Any

import httpx
import pytest
from live_server import PATIENCE, Live, held, live_server, logged, soon
from tiny_llm import tiny_llm

from outrider import LLM
from outrider.errors import InvalidRequest
from outrider.server.connections import ConnectionLimits, networks
from outrider.server.hosts import origins

APP = "https://app.example"
Asked = tuple[dict[str, Any], str]
"""A request, and whom it comes from."""


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return tiny_llm(tmp_path_factory.mktemp("tiny"), also="available", dtype="fp32", max_batch=4)


@pytest.fixture(scope="module")
def live(llm: LLM) -> Iterator[Live]:
    limits = ConnectionLimits(proxies=networks(["127.0.0.1"]))
    with live_server(llm, origins=[APP], limits=limits, max_queue=64) as server:
        yield server


def completion(live: Live, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    body = {"prompt": [30, 31, 32], "max_tokens": 4, "ignore_eos": True, **more}
    return live.http.post("/v1/completions", json=body, headers=headers)


def test_pages_of_an_allowed_origin_may_ask_and_read(live: Live) -> None:
    asking = {
        "origin": APP,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    allowed = live.http.options("/v1/completions", headers=asking)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == APP
    answer = completion(live, {"origin": APP})
    assert answer.headers["access-control-allow-origin"] == APP
    assert "x-request-id" in answer.headers["access-control-expose-headers"].lower()
    assert live.http.options("/v1/completions", headers={**asking, "origin": "https://evil.example"}).status_code == 400
    assert "access-control-allow-origin" not in completion(live, {"origin": "https://evil.example"}).headers


def test_without_origins_no_page_may(llm: LLM) -> None:
    with live_server(llm) as live:
        assert "access-control-allow-origin" not in completion(live, {"origin": APP}).headers
        assert live.http.options("/v1/completions", headers={"origin": APP}).status_code == 405


def test_what_is_no_origin() -> None:
    assert origins([APP, "http://localhost:3000", "*"]) == [APP, "http://localhost:3000", "*"]
    for wrong in ("app.example", f"{APP}/", f"{APP}/page", "ftp://app.example", "https://APP.example", ""):
        with pytest.raises(InvalidRequest, match="allowed-origins"):
            origins([wrong])


def test_the_log_has_the_clients_address(live: Live, llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "outrider.server")
    assert logged(caplog, completion(live))["client"] == "127.0.0.1"
    forwarded = {"x-forwarded-for": "6.6.6.6, 203.0.113.9"}
    assert logged(caplog, completion(live, forwarded))["client"] == "203.0.113.9", "as the trusted proxy saw it"
    with live_server(llm) as untrusting:
        assert logged(caplog, completion(untrusting, forwarded))["client"] == "127.0.0.1"


def counted(live: Live, name: str, label: str = "") -> float:
    lines = [line for line in live.http.get("/metrics").text.splitlines() if line.startswith(f"outrider:{name}_total")]
    return sum(float(line.split()[-1]) for line in lines if label in line)


def test_errors_and_cancellations_are_counted(live: Live) -> None:
    bad, missing = counted(live, "request_errors", 'status="400"'), counted(live, "request_errors", 'status="404"')
    cancelled = counted(live, "request_cancelled")
    assert completion(live, max_tokens="many").status_code == 400
    assert completion(live, model="another").status_code == 404
    body = {"prompt": [30], "max_tokens": 120, "stream": True, "ignore_eos": True}
    passes, service = count(), live.backend.served().service
    with held(live.llm, lambda batch: next(passes) < 5):
        with live.http.stream("POST", "/v1/completions", json=body) as stream:
            next(stream.iter_lines())
        assert soon(lambda: not service.open)
    assert soon(lambda: counted(live, "request_cancelled") == cancelled + 1)
    assert counted(live, "request_errors", 'status="400"') == bad + 1
    assert counted(live, "request_errors", 'status="404"') == missing + 1


def test_a_server_that_is_not_ready_makes_no_errors_by_saying_so(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    before = counted(live, "request_errors")
    monkeypatch.setattr(type(live.backend), "status", property(lambda self: "loading"))
    assert live.http.get("/health").status_code == 503
    monkeypatch.undo()
    assert counted(live, "request_errors") == before


def test_what_is_turned_away_is_counted_and_told_when_to_come_back(llm: LLM) -> None:
    with live_server(llm, max_queue=0) as live:
        many = completion(live, n=4, max_tokens=100)
        assert many.status_code == 200
        service = live.backend.served().service
        service.capacity = 0
        assert completion(live, n=1).status_code == 400, "more than would ever fit"
        service.capacity = 1
        service._typical = 30.0

        may_run = Event()

        async def six() -> list[httpx.Response]:
            async with httpx.AsyncClient(base_url=live.url, timeout=PATIENCE) as client:
                body = {"prompt": [30], "max_tokens": 120, "ignore_eos": True}
                asked = [asyncio.ensure_future(client.post("/v1/completions", json=body)) for _ in range(6)]
                while sum(each.done() for each in asked) < 5:
                    await asyncio.sleep(0.01)
                may_run.set()
                return await asyncio.gather(*asked)

        with held(live.llm, lambda batch: may_run.is_set()):
            answers = asyncio.run(six())
        assert sorted(answer.status_code for answer in answers) == [200] + [429] * 5
        refused = [answer for answer in answers if answer.status_code == 429]
        assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in refused)
        assert counted(live, "request_rejected") == len(refused)


def crowded(live: Live, many: list[Asked], late: list[Asked]) -> list[httpx.Response]:
    """What the many are answered, who fill four places, and the late, who come while they all are there."""
    service = live.backend.served().service
    all_many, all_late = Event(), Event()

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=live.url, timeout=PATIENCE) as client:

            async def begun(asked: list[Asked], open_then: int) -> list[asyncio.Task[httpx.Response]]:
                tasks = [
                    asyncio.ensure_future(
                        client.post("/v1/completions", json=body, headers={"x-forwarded-for": address})
                    )
                    for body, address in asked
                ]
                while service.open < open_then:
                    await asyncio.sleep(0.005)
                return tasks

            first = await begun(many, len(many))
            all_many.set()
            while len(live.llm.engine.scheduler.running) < 4:
                await asyncio.sleep(0.005)
            last = await begun(late, len(many) + len(late))
            all_late.set()
            return await asyncio.gather(*first, *last)

    with held(live.llm, lambda batch: all_many.is_set() if len(batch) < 4 else all_late.is_set()):
        return asyncio.run(ask())


def test_tokens_are_counted_once_whoever_had_to_make_way(live: Live, llm: LLM) -> None:
    """Twelve of one address fill four places; another's come in between, and some are computed again."""
    names = ("generation_tokens", "prompt_tokens")
    before = [counted(live, name) for name in names]
    preempted = llm.engine.stats.preemptions
    prefix = httpx.get(f"{live.watched}/metrics", timeout=PATIENCE).text

    def asked(number: int, address: str) -> Asked:
        return {"prompt": [40 + number] * 20, "max_tokens": 80, "ignore_eos": True, "seed": number}, address

    many = [asked(i, "10.0.0.1") for i in range(12)]
    late = [asked(20 + i, f"10.0.0.{2 + i}") for i in range(3)]
    usages = [answer.json()["usage"] for answer in crowded(live, many, late)]
    assert llm.engine.stats.preemptions > preempted, "no test"
    spent = [sum(usage[name] for usage in usages) for name in ("completion_tokens", "prompt_tokens")]
    assert [counted(live, name) - then for name, then in zip(names, before, strict=True)] == spent
    pages = [prefix, httpx.get(f"{live.watched}/metrics", timeout=PATIENCE).text]
    hits = [float(line.split()[-1]) for page in pages for line in page.splitlines() if "cache_hits_total{" in line]
    assert hits[-1] - hits[0] <= spent[1]


@pytest.mark.parametrize(("network", "makes_way"), [("2001:db8::{:x}", True), ("2001:db8:0:{:x}::1", False)])
def test_a_network_of_ipv6_addresses_is_one_in_the_queue(live: Live, llm: LLM, network: str, makes_way: bool) -> None:
    """Twelve requests of as many addresses: of one household, a newcomer gets one of its four places; of twelve, the
    newcomer waits like everybody else."""
    preempted = llm.engine.stats.preemptions

    def asked(number: int, address: str) -> Asked:
        return {"prompt": [60 + number] * 20, "max_tokens": 80, "ignore_eos": True, "seed": number}, address

    many = [asked(i, network.format(1 + i)) for i in range(12)]
    answers = crowded(live, many, [asked(20, "2001:db8:ffff::1")])
    assert [answer.status_code for answer in answers] == [200] * 13
    assert (llm.engine.stats.preemptions > preempted) == makes_way
