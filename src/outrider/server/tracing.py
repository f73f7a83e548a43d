"""OpenTelemetry: a span for each request, sent to a collector (`pip install "outrider[otel]"`).

A span is made when its request has ended, of what its line in the log says, and so holds no text either. It belongs to
the trace that the client names (`traceparent`).
"""

from __future__ import annotations

from time import perf_counter, time_ns

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import Scope

from outrider import __version__
from outrider.errors import InvalidRequest, shown
from outrider.server.records import Record

_NAMES = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "choices": "gen_ai.request.choice.count",
    "model": "gen_ai.response.model",
    "time_to_first_token": "outrider.time_to_first_token",
    "mean_acceptance_length": "outrider.mean_acceptance_length",
    "principal": "enduser.id",
    "ended": "outrider.ended",
}
"""What spans call the facts of a request."""


def exported_to(address: str) -> Traces:
    """Spans are sent there in batches, by OTLP over HTTP. What cannot be sent is dropped: nobody waits for it."""
    if not address.startswith(("http://", "https://")):
        raise InvalidRequest(f"otlp_traces: {shown(address)} is no http or https address")
    return Traces(BatchSpanProcessor(OTLPSpanExporter(address)))


class Traces:
    """Makes the spans and gives them to `processor`."""

    def __init__(self, processor: SpanProcessor) -> None:
        provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "outrider"}), shutdown_on_exit=True)
        provider.add_span_processor(processor)
        self._tracer = provider.get_tracer("outrider.server", __version__)
        self._parents = TraceContextTextMapPropagator()

    def ended(self, scope: Scope, request: Record, status: int) -> None:
        now = time_ns()
        span = self._tracer.start_span(
            f"{scope['method']} {scope['path'][:200]}",
            context=self._parents.extract(dict(Headers(scope=scope))),
            kind=SpanKind.SERVER,
            start_time=now - round(1e9 * (perf_counter() - request.started)),
            attributes={
                "http.request.method": scope["method"],
                "http.response.status_code": status,
                "outrider.request_id": request.id,
                **{name: request.facts[fact] for fact, name in _NAMES.items() if fact in request.facts},
            },
        )
        if status >= 500 or request.broken_off == "failed":
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=now)
