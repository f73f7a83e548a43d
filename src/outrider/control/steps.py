"""What steps on a device take: measured before the first, then followed.

The device measures itself, over empty caches; what a step takes grows with the text, and changes with the machine. And
the host, which reads one step while the next one runs, may need longer for it than the device: then that is what the
step takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from outrider.core.step import PLAIN, StepShape, tree_of

_LEVEL, _OFF = 1 / 8, 1 / 16
"""What one step counts for in the averages."""
_FASTER, _SLOWER = 1 / 4, 1 / 32
"""What one step of the host counts for: whatever else it has to do (requests come and go) comes on top of a step."""
_MOST = 1.5
"""A step that takes so many times what was expected, or less by as much, was disturbed: it counts for no more."""
_DRAFTED, _VERIFIED = 0.09, 0.01
"""What a level is taken to cost, of a plain step, to draft and to verify until something is measured."""


def shapes(drafted: Iterable[int], offered: Iterable[int], trees: Iterable[int] = ()) -> list[StepShape]:
    """Those of steps that verify what they draft, or one of the longer lengths `offered`; plain ones first. Then those
    of trees, by their nodes."""
    levels = sorted({0, *drafted})
    chains = [StepShape(n, length) for n in levels for length in sorted({n, *(o for o in offered if o > n)})]
    return chains + [tree_of(nodes) for nodes in trees]


def guessed(shapes: Sequence[StepShape]) -> dict[StepShape, float]:
    """In plain steps."""
    return {shape: 1 + _DRAFTED * shape.drafted + _VERIFIED * shape.size for shape in shapes}


def evenly(seconds: Mapping[StepShape, float], requests: int, plain: float) -> list[float]:
    """At [r]: what a step of r rows costs that verifies chains of one length for so many requests, where a plain one
    costs `plain` and the rows are spread evenly. `seconds`: by shape."""
    chains = sorted((shape.verified, taken / seconds[PLAIN]) for shape, taken in seconds.items() if not shape.nodes)
    costs = [plain] * (requests + 1)
    for length, times in chains:  # the next longer one that is prepared
        costs += [max(costs[-1], plain * times)] * (requests * (length + 1) + 1 - len(costs))
    return costs


class StepCosts:
    """Of steps of about as many requests, by their shape."""

    def __init__(self, measured: Mapping[StepShape, float]) -> None:
        self._measured = measured
        self._level = 1.0
        """How many times what was measured steps of any shape take."""
        self._off = dict.fromkeys(measured, 1.0)
        """By how much each shape differs from that."""
        self._host: dict[StepShape, float] = {}

    def seconds(self) -> dict[StepShape, float]:
        """By shape. What the host needs for one that was not tried lately is guessed from the others."""
        host = max(self._host.values(), default=0.0)
        return {shape: max(self._device(shape), self._host.get(shape, host)) for shape in self._measured}

    def takes(self, shape: StepShape) -> float:
        """Seconds of such a step, as far as was seen; 0: it was never measured."""
        return max(self._device(shape), self._host.get(shape, 0.0)) if shape in self._off else 0.0

    def spare(self, shape: StepShape) -> float:
        """Seconds for which the device is busy with such a step when the host is done with the one before."""
        return self._device(shape) - self._host.get(shape, 0.0) if shape in self._off else 0.0

    def _device(self, shape: StepShape) -> float:
        return self._measured[shape] * self._level * self._off[shape]

    def observe(self, shape: StepShape, seconds: float) -> None:
        """A step took the device so long."""
        if shape in self._off:
            expected = self._device(shape)
            ratio = min(_MOST, max(1 / _MOST, seconds / expected))
            self._level *= 1 + _LEVEL * (ratio - 1)
            self._off[shape] *= 1 + _OFF * (ratio - 1)

    def observe_host(self, shape: StepShape, seconds: float) -> None:
        """And then the host, which had nothing else to do."""
        known = self._host.get(shape, seconds)
        more = min(_MOST * known, seconds) - known
        self._host[shape] = known + (_SLOWER if more > 0 else _FASTER) * more
