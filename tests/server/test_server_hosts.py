"""What browsers are told and asked: the server's name, HEAD, and what a page may do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live_server import Live, live_server

from outrider import LLM
from outrider.server.hosts import names


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    llm = LLM("smollm2-135m", drafter="none", max_batch=1, max_context=64)
    with live_server(llm, hosts=["Models.example"]) as server:
        yield server


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8000", "models.example:443"]
)
def test_the_server_answers_to_its_names(live: Live, host: str) -> None:
    assert live.http.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "[::2]", "[", ""]
)
@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/nowhere"])
def test_the_server_does_not_answer_to_other_names(live: Live, host: str, path: str) -> None:
    answer = live.http.get(path, headers={"host": host})
    assert answer.status_code == 421
    assert answer.json()["error"]["code"] == "unknown_host"
    assert "--allow-host" in answer.json()["error"]["message"]


def test_which_names_a_server_has() -> None:
    mine = frozenset({"localhost", "127.0.0.1", "::1"})
    assert names("127.0.0.1") == names("localhost") == names("::1") == mine
    assert names("127.0.0.9") == mine | {"127.0.0.9"}
    assert names("0.0.0.0") is names("192.168.1.2") is names("models.example") is None
    assert names("0.0.0.0", ["models.example"]) == mine | {"0.0.0.0", "models.example"}


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/openapi.json", "/health", "/metrics", "/v1/models", "/playground/app.js"]
)
def test_head_is_get_without_the_body(live: Live, path: str) -> None:
    whole, head = live.http.get(path), live.http.head(path)
    assert head.status_code == whole.status_code == 200
    assert head.content == b""
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert "content-length" in head.headers
    assert live.http.get("/health").status_code == 200, "the connection is still of use"


def test_head_where_there_is_no_get(live: Live) -> None:
    answer = live.http.head("/v1/chat/completions")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/openapi.json", "/health", "/playground/app.js", "/nowhere", "/v1/chat/completions"]
)
def test_browsers_may_do_no_more_than_a_page_needs(live: Live, path: str) -> None:
    headers = live.http.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'none'; ")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert len(headers.get_list("content-security-policy")) == 1
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
