"""What steps on a device take: measured before the first, then followed.

The device measures itself, over empty caches; what a step takes grows with the text, and changes with the machine. And
the host, which reads one step while the next one runs, may need longer for it than the device: then that is what the
step takes.
"""

from __future__ import annotations

from collections.abc import Mapping

_LEVEL, _OFF, _HOST = 1 / 8, 1 / 16, 1 / 8
"""What one step counts for in the averages."""
_MOST = 1.5
"""A step that takes so many times what was expected, or less by as much, was disturbed: it counts for no more."""


class StepCosts:
    """Of steps of about as many sequences, by the length of their chains."""

    def __init__(self, measured: Mapping[int, float]) -> None:
        self._measured = measured
        self._level = 1.0
        """How many times what was measured steps of any length take."""
        self._off = dict.fromkeys(measured, 1.0)
        """By how much each length differs from that."""
        self._host: dict[int, float] = {}

    def seconds(self) -> dict[int, float]:
        """By length. What the host needs for one that was not tried lately is guessed from the others."""
        host = max(self._host.values(), default=0.0)
        return {
            length: max(measured * self._level * self._off[length], self._host.get(length, host))
            for length, measured in self._measured.items()
        }

    def observe(self, length: int, seconds: float) -> None:
        """A step took the device so long."""
        if length in self._off:
            expected = self._measured[length] * self._level * self._off[length]
            ratio = min(_MOST, max(1 / _MOST, seconds / expected))
            self._level *= 1 + _LEVEL * (ratio - 1)
            self._off[length] *= 1 + _OFF * (ratio - 1)

    def observe_host(self, length: int, seconds: float) -> None:
        """And then the host, which had nothing else to do."""
        known = self._host.get(length, seconds)
        self._host[length] = known + _HOST * (min(_MOST * known, seconds) - known)
