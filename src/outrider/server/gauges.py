"""Metrics of what is true now, read when somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from outrider.engine.request_state import Load


class Gauges:
    """What is true now. Nothing here may depend on what was reused, which is the admins' to know."""

    def __init__(self, loads: Callable[[], Mapping[str, Load]]) -> None:
        """`loads`: what the engine of each model is busy with, by the model's name."""
        self._loads = loads

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for model, load in self._loads().items():
            for family in _Model(model).gauges(load):
                if (known := families.setdefault(family.name, family)) is not family:
                    known.samples += family.samples
        return families.values()


class _Model:
    """Of one model."""

    def __init__(self, model: str) -> None:
        self._model = model

    def gauges(self, load: Load) -> Iterable[Metric]:
        stats, budgets, belief = load
        yield self._gauge("num_requests_running", "Requests being decoded", stats.running)
        yield self._gauge("num_requests_waiting", "Requests waiting for room", stats.waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of the cache in use, 0 to 1", stats.kv_used / stats.kv_total)
        yield self._counter("num_preemptions", "Requests sent back to wait", stats.preemptions)
        late = "Steps compiled or recorded on a GPU while a request waited"
        yield self._counter("gpu_late_recordings", late, stats.late_recordings)
        again = "Errors of the GPU after which all that ran was computed again"
        yield self._counter("gpu_restarts", again, stats.restarts)
        yield self._gauge("controller_budget_nodes", "Nodes that may be drafted in a step, over all", sum(budgets))
        yield self._gauge(
            "controller_drafting_sequences", "Requests that may draft at all", sum(1 for nodes in budgets if nodes)
        )

        if belief is not None:
            yield self._gauge("controller_costs_known", "Whether the cost of passes is known here", belief.known)
            yield self._gauge("controller_costs_measured", "Whether it was measured, not guessed", belief.measured)
            yield self._gauge("controller_row_cost", "Of verifying one more token, in plain passes", belief.row)
            yield self._gauge("controller_token_cost", "Of a token now, in plain passes", belief.token)
            yield self._by("drafter", "controller_level_cost", "Of a drafted level, in plain passes", belief.drafting)
            yield self._by(
                "drafter", "controller_acceptance", "Drafted tokens right after right ones", belief.acceptance
            )
            yield self._by("rows", "controller_pass_cost", "Of a pass, in passes of one row", belief.passes)
            yield self._gauge("controller_ledger_passes", "What drafting may still lose, at the least", belief.ledger)

    def _by(self, label: str, name: str, text: str, values: Mapping[str, float] | Mapping[int, float]) -> Metric:
        family = GaugeMetricFamily(f"outrider:{name}", text, labels=["model_name", label])
        for key, value in values.items():
            family.add_metric([self._model, str(key)], value)
        return family

    def _counter(self, name: str, text: str, value: int) -> Metric:
        family = CounterMetricFamily(f"outrider:{name}", text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"outrider:{name}", text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family
