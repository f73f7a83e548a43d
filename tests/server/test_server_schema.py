"""Requests made up from the OpenAPI document: whatever they are, the server answers, and never with a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from live_server import PATIENCE, Live, live_server
from schemathesis.checks import not_a_server_error

from outrider import LLM
from outrider.server.app import make_app
from outrider.server.backend import Backend
from outrider.server.models import Models

schema = schemathesis.openapi.from_dict(make_app(Models([Backend("smollm2-135m", LLM, max_queue=8)])).openapi())


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    # A short context: a made-up request may ask for as much text as fits.
    with live_server(
        LLM("smollm2-135m", also="available", remember=False, max_batch=4, max_context=48), max_queue=64
    ) as server:
        yield server


@schema.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_breaks_the_server(live: Live, case: schemathesis.Case[Any]) -> None:
    response = case.call(base_url=live.url, timeout=PATIENCE)
    case.validate_response(response, checks=[not_a_server_error])
    assert response.status_code != 422
    if response.status_code >= 400:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
