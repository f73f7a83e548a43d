"""A span for each request, where OpenTelemetry is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from live_server import live_server, soon
from tiny_llm import tiny_llm

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http", reason='traces are an extra: pip install "outrider[otel]"'
)

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from outrider.errors import InvalidRequest
from outrider.server.tracing import Traces, exported_to

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize("address", ["nonsense", "", "localhost:4318", "file:///tmp/spans"])
def test_spans_are_sent_to_web_addresses_only(address: str) -> None:
    with pytest.raises(InvalidRequest, match="is no http or https address"):
        exported_to(address)


def test_spans_say_what_the_log_says(tmp_path: Path) -> None:
    kept = InMemorySpanExporter()
    with live_server(tiny_llm(tmp_path, dtype="fp32"), watchers=[Traces(SimpleSpanProcessor(kept)).ended]) as live:
        body = {"prompt": [77, 78, 79], "max_tokens": 5, "ignore_eos": True, "n": 2}
        parent = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "x-request-id": "mine"}
        live.http.post("/v1/completions", json=body, headers=parent)
        live.http.post("/v1/completions", json={"prompt": "secret", "max_tokens": "many"})
        assert soon(lambda: len(kept.get_finished_spans()) == 2)
    good, bad = sorted(kept.get_finished_spans(), key=lambda span: (span.attributes or {})["http.response.status_code"])
    assert format(good.context.trace_id, "032x") == TRACE
    assert good.name == "POST /v1/completions"
    expected = {
        "http.response.status_code": 200,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 10,
        "gen_ai.response.model": "smollm2-135m",
        "outrider.request_id": "mine",
    }
    assert expected.items() <= dict(good.attributes or {}).items()
    assert 0 < (good.end_time or 0) - (good.start_time or 0) < 60e9
    assert (good.status.status_code, bad.status.status_code) == (StatusCode.UNSET, StatusCode.UNSET)
    assert dict(bad.attributes or {})["http.response.status_code"] == 400
    assert "secret" not in json.dumps([dict(span.attributes or {}) for span in (good, bad)])
