"""How much a key may use in a minute."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from outrider.server.errors import ApiError
from outrider.server.keys import ApiKey

_MINUTE = 60.0


class Debt:
    """What was spent and has not come back yet. Up to a minute's worth may be spent at once; what turns out to cost
    more is taken all the same, and waited for before anything else is begun."""

    def __init__(self, now: float) -> None:
        self._amount = 0.0
        self._at = now

    def wait(self, rate: int, now: float) -> float:
        """Seconds until one more may be spent."""
        return max(0.0, (self._settled(rate, now) + 1 - rate) * _MINUTE / rate)

    def spend(self, amount: int, rate: int, now: float) -> None:
        self._amount = self._settled(rate, now) + amount
        self._at = now

    def _settled(self, rate: int, now: float) -> float:
        return max(0.0, self._amount - (now - self._at) * rate / _MINUTE)


class Meter:
    """Of one principal. The limits are those of its key as it now stands."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._requests = Debt(clock())
        self._tokens = Debt(clock())

    def begin(self, key: ApiKey) -> None:
        """Another request; `ApiError` where it is too many, or the tokens of those before are not paid off."""
        now = self._clock()
        for debt, rate, what in (
            (self._requests, key.requests_per_minute, "requests"),
            (self._tokens, key.tokens_per_minute, "tokens"),
        ):
            if rate is not None and (wait := debt.wait(rate, now)) > 0:
                message = f"this key may use {rate} {what} a minute, and has; ask again in {wait:.1f} seconds"
                raise ApiError(429, message, code="rate_limit_exceeded", retry_after=wait)
        if key.requests_per_minute is not None:
            self._requests.spend(1, key.requests_per_minute, now)

    def spend(self, key: ApiKey, tokens: int) -> None:
        if key.tokens_per_minute is not None:
            self._tokens.spend(tokens, key.tokens_per_minute, self._clock())
