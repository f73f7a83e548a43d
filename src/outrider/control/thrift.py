"""Thrift: how often to think about drafts where they are not worth the thought.

Looking up, weighing and scoring take the host some tenths of a millisecond a step: nothing beside a pass of a large
model, a tenth of a small one's on a fast machine. In a silence that is spent for nothing, and where drafts bring less
than it, for too little; what changes is found out a few steps later.
"""

from __future__ import annotations

_SHARE = 0.01
"""Of a plain step that thinking may take; as much again is spent on what goes with it."""
_LONGEST = 511
"""Steps without a thought, at most: a text that begins to repeat itself is to be noticed soon."""
_DEAREST = 8.0
"""Plain steps that a thought may take: one that took longer was disturbed."""
_FAR, _SOME = 4.0, 0.25
"""So many times what thoughts took, and so much of a plain step, is far longer than usual."""
_HOPE, _HOPEFUL = 0.5, 8
"""What drafts are taken to be worth at first, of a plain step, and for as much as how many steps that counts."""
_RATE, _SLOW_RATE = 1 / 8, 1 / 32
"""What a step counts for: thoughts take much the same time, drafts bring something now and then."""


class Thrift:
    def __init__(self) -> None:
        self.cost = 0.0
        """What a thought takes, of a plain step."""
        self._worth = _HOPE
        """What is expected of the drafts that come of it, less what those cost, of a plain step."""
        self._thoughts = _HOPEFUL
        """That this rests on, those that hope counts for among them."""
        self._before = 0.0
        """What the last one took."""
        self.left = 0
        """Steps without a thought that are still to come, as far as is known."""

    def rests(self, silent: bool) -> bool:
        """Whether nothing is thought about in the next step. `silent`: nothing was drafted lately."""
        if not silent and self._worth >= self.cost:
            self.left = 0
            return False
        if self.left:
            self.left -= 1
            return True
        self.left = min(_LONGEST, int(self.cost / _SHARE))
        return False

    def rested(self) -> None:
        """A step is over for which nobody asked."""
        self.left = max(0, self.left - 1)

    def observe(self, thinking: float, step: float) -> None:
        """The thought before a step took so many seconds, where a plain step takes `step`. One that took far longer
        than usual was disturbed, unless the one before did, too: the machine slept, or collected garbage."""
        took = min(_DEAREST, max(0.0, thinking / step))
        usual = took if took < _FAR * self.cost + _SOME else min(took, self._before)
        self.cost += _RATE * (usual - self.cost)
        self._before = took

    def value(self, worth: float, right: bool) -> None:
        """What was expected of the drafts of a step that was thought about, less what they cost, of a plain step; and
        whether one that was only tried was `right`."""
        self._thoughts += 1
        self._worth += max(_SLOW_RATE, 1 / self._thoughts) * (worth - self._worth)
        if right or worth > self.cost:  # they may be again
            self.left = 0
