"""Prometheus metrics: vLLM's, by its names and with our prefix, and our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.types import Scope

from outrider.core.request import Chunk
from outrider.engine.request import Request
from outrider.engine.request_state import Load
from outrider.server.answers import Answer
from outrider.server.gauges import Gauges
from outrider.server.records import Record

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)
_POSITIONS = 32
"""Positions in a draft told apart; the rest count with the last."""
_OURS, _THEIRS = b"outrider:", b"vllm:"
_OUR_OWN = (b"controller_", b"gpu_", b"server_restarts", b"request_errors", b"request_rejected", b"request_cancelled")
"""What names begin with that vLLM does not have."""


class Metrics:
    """What happened since the start. `loads` says what the engine of each model is busy with when somebody looks."""

    def __init__(self, loads: Callable[[], Mapping[str, Load]], restarts: int = 0) -> None:
        """`restarts`: how often the server has begun anew, see `restart.py`."""
        self._registry = CollectorRegistry()
        self._admins = CollectorRegistry()
        """For those who may know what was reused: whoever reads that before and after a request of their own knows how
        many tokens of it somebody else has sent."""
        self._models: dict[str, ModelMetrics] = {}
        registry = self._registry
        self._families = Families(registry, self._admins)
        self._errors = Counter(
            "outrider:request_errors", "Requests answered with an error", ("status",), registry=registry
        )
        self._rejected = Counter("outrider:request_rejected", "Requests answered with 429", registry=registry)
        self._cancelled = Counter("outrider:request_cancelled", "Requests whose client left", registry=registry)
        begun = Counter("outrider:server_restarts", "Times the server began anew, its GPU lost", registry=registry)
        begun.inc(restarts)
        registry.register(Gauges(loads))

    def of(self, model: str) -> ModelMetrics:
        """Those of the requests to one model."""
        if model not in self._models:
            self._models[model] = ModelMetrics(model, self._families)
        return self._models[model]

    def page(self, *, admin: bool) -> bytes:
        """The text Prometheus reads. What vLLM has, too, is told a second time by its name."""
        text = generate_latest(self._registry) + (generate_latest(self._admins) if admin else b"")
        theirs = [line for line in text.splitlines(keepends=True) if not any(_OURS + own in line for own in _OUR_OWN)]
        return text + b"".join(theirs).replace(_OURS, _THEIRS)

    def ended(self, scope: Scope, request: Record, status: int) -> None:
        """A request has had its answer, or will have none. A server that says it is not ready has made no error."""
        if request.broken_off == "cancelled":
            self._cancelled.inc()
        elif status == 429:
            self._rejected.inc()
        elif (status >= 400 or request.broken_off) and scope["path"] != "/health":
            self._errors.labels(str(max(500, status) if request.broken_off else status)).inc()


class Families:
    """Everything that is counted for each model."""

    def __init__(self, registry: CollectorRegistry, admins: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str, where: CollectorRegistry = registry) -> Counter:
            return Counter(f"outrider:{name}", text, ("model_name", *labels), registry=where)

        def histogram(name: str, text: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
            return Histogram(f"outrider:{name}", text, ("model_name",), registry=registry, buckets=buckets)

        self.drafts = counter("spec_decode_num_drafts", "Steps with a draft")
        self.drafted = counter("spec_decode_num_draft_tokens", "Tokens drafted")
        self.accepted = counter("spec_decode_num_accepted_tokens", "Drafted tokens accepted")
        self.per_position = counter(
            "spec_decode_num_accepted_tokens_per_pos", "Drafted tokens accepted, by position in the draft", "position"
        )
        self.prompt = counter("prompt_tokens", "Tokens of prompts answered")
        self.generated = counter("generation_tokens", "Tokens generated")
        self.queries = counter("prefix_cache_queries", "Tokens of prompts answered", where=admins)
        self.hits = counter("prefix_cache_hits", "Those of them that were there already", where=admins)
        self.success = counter("request_success", "Answers finished", "finished_reason")
        self.first = histogram("time_to_first_token_seconds", "From the request to its first token")
        self.each = histogram("time_per_output_token_seconds", "Per token after the first, per answer", _PER_TOKEN)
        self.whole = histogram("e2e_request_latency_seconds", "From the request to an answer's end")
        self.queue = histogram("request_queue_time_seconds", "From the request to a place in a batch")
        self.prefill = histogram("request_prefill_time_seconds", "In which an answer's prompt was run")
        self.decode = histogram("request_decode_time_seconds", "In which an answer was decoded")
        self.prompts = histogram("request_prompt_tokens", "Tokens of an answer's prompt", _TOKENS)
        self.answers = histogram("request_generation_tokens", "Tokens of an answer", _TOKENS)


class ModelMetrics:
    """Of the requests to one model."""

    def __init__(self, model: str, families: Families) -> None:
        self._model = model
        self._of = families
        self._drafts, self._drafted, self._accepted = (
            counter.labels(model) for counter in (families.drafts, families.drafted, families.accepted)
        )
        self._generated, self._prompt, self._queries, self._hits = (
            counter.labels(model) for counter in (families.generated, families.prompt, families.queries, families.hits)
        )

    def gained(self, answer: Answer, chunk: Chunk, started: float) -> None:
        """A step of an answer."""
        self._generated.inc(len(chunk.token_ids))
        if chunk.token_ids and answer.first == answer.last:
            self._of.first.labels(self._model).observe(answer.first - started)
        if not chunk.step.draft:
            return
        self._drafts.inc()
        self._drafted.inc(len(chunk.step.draft))
        self._accepted.inc(len(chunk.step.path))
        for position in range(len(chunk.step.path)):
            self._of.per_position.labels(self._model, str(min(position, _POSITIONS - 1))).inc()

    def finished(self, answer: Answer, request: Request, started: float) -> None:
        done, name, of = answer.whole, self._model, self._of
        tokens = len(done.token_ids)
        of.success.labels(name, done.finish_reason).inc()
        of.whole.labels(name).observe(perf_counter() - started)
        of.queue.labels(name).observe(max(0.0, (request.admitted or started) - started))
        of.prefill.labels(name).observe(done.prefill_seconds)
        of.decode.labels(name).observe(done.seconds)
        of.prompts.labels(name).observe(done.prompt_tokens)
        of.answers.labels(name).observe(tokens)
        if tokens > 1:
            of.each.labels(name).observe((answer.last - answer.first) / (tokens - 1))

    def prompted(self, tokens: int, reused: int) -> None:
        """An answered request's prompts, and how much of them was there before."""
        self._prompt.inc(tokens)
        self._queries.inc(tokens)
        self._hits.inc(reused)
