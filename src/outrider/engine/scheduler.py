"""Who runs: first come, first served, as many at a time as there are cache slots. No torch here."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outrider.engine.sequence import Sequence


class Scheduler:
    """Sequences wait, then run until finished or aborted; a finished one makes room at the next step."""

    def __init__(self, max_running: int) -> None:
        self._max_running = max_running
        self._waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    @property
    def idle(self) -> bool:
        return not self._waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    def admit(self) -> list[Sequence]:
        """Move waiting sequences into the running set; they must be prefilled before the next step."""
        joined = []
        while self._waiting and len(self.running) < self._max_running:
            joined.append(self._waiting.popleft())
            self.running.append(joined[-1])
        return joined

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, waiting or running; one that has left already stays out."""
        for group in (self.running, self._waiting):
            if sequence in group:
                group.remove(sequence)
