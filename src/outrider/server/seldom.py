"""A log line for what may happen thousands of times a second."""

from __future__ import annotations

import logging
from time import monotonic

log = logging.getLogger("outrider.server")


class Seldom:
    """Logs at most once a period, and says then how often it kept silent since the line before."""

    def __init__(self, period: float = 60.0) -> None:
        self._period = period
        self._again = 0.0
        self._omitted = 0

    def log(self, message: str, **facts: object) -> None:
        if monotonic() < self._again:
            self._omitted += 1
            return
        log.warning(message, extra={"facts": {**facts, "omitted": self._omitted}})
        self._again, self._omitted = monotonic() + self._period, 0
