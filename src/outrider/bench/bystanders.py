"""Who else uses the processors while we measure. No torch here.

Other work on a small machine can slow one answer tenfold, and not every arm alike. So beside every answer stands how
many processors were busy with something that is no arm of this run (time stolen by other virtual machines included).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

LIMIT = 0.25
"""Processors' worth of other work from which on an answer counts as disturbed."""

_TICK = os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)
"""Columns of /proc/stat that are not work: idle, waiting for a disk."""


class Bystanders:
    """Watches between `start` and `processors`; `pids`: the arms' processes besides this one."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._began = (0.0, 0.0)
        self._started = 0.0

    def start(self) -> None:
        self._began = (_busy(), self._own())
        self._started = perf_counter()

    def processors(self) -> float | None:
        """How many were busy with other work, on average since `start`; None where the system does not tell."""
        busy, own = _busy() - self._began[0], self._own() - self._began[1]
        seconds = perf_counter() - self._started
        if not _STAT.exists() or seconds < 10 / _TICK:
            return None
        return round(max(0.0, busy - own) / seconds, 3)

    def _own(self) -> float:
        """Processor seconds of this process and its arms."""
        times = os.times()
        return times.user + times.system + sum(map(_used, self._pids))


_STAT = Path("/proc/stat")


def _busy() -> float:
    """Processor seconds all work has taken since the machine started."""
    try:
        columns = [int(each) for each in _STAT.read_text(encoding="utf-8").splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return 0.0
    return sum(ticks for i, ticks in enumerate(columns) if i not in _IDLE) / _TICK


def _used(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK  # user and system time
