"""Prometheus metrics, by vLLM's names with our prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from outrider.engine.tickets import Delivery, Load
from outrider.server.answers import Answer

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_POSITIONS = 32
"""Positions in a draft told apart; the rest count with the last."""


class Metrics:
    """What happened since the start. `load` says what the engine is busy with when somebody looks."""

    def __init__(self, model: str, load: Callable[[], Load]) -> None:
        registry = self._registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"outrider:{name}", text, ("model_name", *labels), registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(f"outrider:{name}", text, ("model_name",), registry=registry, buckets=buckets)
            return made.labels(model)

        self._model = model
        self._drafts = counter("spec_decode_num_drafts", "Steps with a draft").labels(model)
        self._drafted = counter("spec_decode_num_draft_tokens", "Tokens drafted").labels(model)
        self._accepted = counter("spec_decode_num_accepted_tokens", "Drafted tokens accepted").labels(model)
        self._per_position = counter(
            "spec_decode_num_accepted_tokens_per_pos", "Drafted tokens accepted, by position in the draft", "position"
        )
        self._prompt = counter("prompt_tokens", "Tokens of prompts answered").labels(model)
        self._generated = counter("generation_tokens", "Tokens generated").labels(model)
        self._success = counter("request_success", "Answers finished", "finished_reason")
        self._first = histogram("time_to_first_token_seconds", "From the request to its first token", _SECONDS)
        self._each = histogram("time_per_output_token_seconds", "Per token after the first, per answer", _PER_TOKEN)
        self._whole = histogram("e2e_request_latency_seconds", "From the request to an answer's end", _SECONDS)
        registry.register(_Gauges(model, load))

    def page(self) -> bytes:
        """The text Prometheus reads."""
        return generate_latest(self._registry)

    def gained(self, answer: Answer, delivery: Delivery, started: float) -> None:
        """A step of an answer."""
        chunk = delivery.chunk
        self._generated.inc(len(chunk.token_ids))
        if answer.steps == 1:
            self._first.observe(answer.first - started)
        if not chunk.step.draft:
            return
        self._drafts.inc()
        self._drafted.inc(len(chunk.step.draft))
        self._accepted.inc(len(chunk.step.path))
        for position in range(len(chunk.step.path)):
            self._per_position.labels(self._model, str(min(position, _POSITIONS - 1))).inc()

    def finished(self, answer: Answer, started: float) -> None:
        assert answer.completion is not None
        self._success.labels(self._model, answer.completion.finish_reason).inc()
        self._whole.observe(perf_counter() - started)
        if answer.tokens > 1:
            self._each.observe((answer.last - answer.first) / (answer.tokens - 1))

    def prompted(self, tokens: int) -> None:
        self._prompt.inc(tokens)


class _Gauges:
    """What is true now. Nothing here may depend on what was reused: whoever reads that before and after a request of
    their own knows how many tokens of it somebody else has sent."""

    def __init__(self, model: str, load: Callable[[], Load]) -> None:
        self._model = model
        self._load = load

    def collect(self) -> Iterable[Metric]:
        stats, budgets, belief = self._load()
        yield self._gauge("num_requests_running", "Sequences being decoded", stats.running)
        yield self._gauge("num_requests_waiting", "Sequences waiting for room", stats.waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of the cache in use, 0 to 1", stats.kv_used / stats.kv_total)
        yield self._counter("num_preemptions", "Sequences sent back to wait", stats.preemptions)
        late = "Steps compiled or recorded on a GPU while a request waited"
        yield self._counter("gpu_late_recordings", late, stats.late_recordings)
        yield self._gauge("controller_budget_nodes", "Nodes that may be drafted in a step, over all", sum(budgets))
        yield self._gauge(
            "controller_drafting_sequences", "Sequences that may draft at all", sum(1 for nodes in budgets if nodes)
        )

        if belief is not None:
            yield self._gauge("controller_costs_known", "Whether the cost of passes is known here", belief.known)
            yield self._gauge("controller_costs_measured", "Whether it was measured, not guessed", belief.measured)
            yield self._gauge("controller_row_cost", "Of verifying one more token, in plain passes", belief.row)
            yield self._gauge("controller_token_cost", "Of a token now, in plain passes", belief.token)
            yield self._by_drafter("controller_level_cost", "Of a drafted level, in plain passes", belief.drafting)
            yield self._by_drafter("controller_acceptance", "Drafted tokens right after right ones", belief.acceptance)
            yield self._gauge("controller_ledger_passes", "What drafting may still lose, at the least", belief.ledger)

    def _by_drafter(self, name: str, text: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(f"outrider:{name}", text, labels=["model_name", "drafter"])
        for drafter, value in values.items():
            family.add_metric([self._model, drafter], value)
        return family

    def _counter(self, name: str, text: str, value: int) -> Metric:
        family = CounterMetricFamily(f"outrider:{name}", text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"outrider:{name}", text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family
