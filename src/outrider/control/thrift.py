"""Thrift: how often to think about drafts where none has been worth it for a while.

Looking up, weighing and scoring take the host some tenths of a millisecond a step: nothing beside a pass of a large
model, a tenth of a small one's on a fast machine. In a silence that is spent for nothing; what changes is found out a
few steps later.
"""

from __future__ import annotations

_SHARE = 0.005
"""Of a plain step that thinking may take; as much again is spent on what goes with it."""
_LONGEST = 7
"""Steps without a thought, at most: a text that begins to repeat itself is to be noticed soon."""
_RATE = 1 / 8


class Thrift:
    def __init__(self) -> None:
        self._cost = 0.0
        """What a thought takes, of a plain step."""
        self._rest = 0

    def rests(self, silent: bool) -> bool:
        """Whether nothing is thought about in the next step. `silent`: nothing was drafted lately."""
        if not silent:
            self._rest = 0
            return False
        if self._rest:
            self._rest -= 1
            return True
        self._rest = min(_LONGEST, int(self._cost / _SHARE))
        return False

    def observe(self, thinking: float, step: float) -> None:
        """A plain step that was thought about took so many seconds, without the thinking."""
        self._cost += _RATE * (thinking / step - self._cost)
