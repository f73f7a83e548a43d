"""Names for ways to sample: `greedy`, `t0.7`, `t0.7-p0.9`, `t0.7-k50`. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from outrider.errors import InvalidRequest

GRAMMAR = "greedy, tT (temperature, as in t0.7), tT-pP (top-p, as in t0.7-p0.9) or tT-kK (top-k, as in t0.7-k50)"
_NUMBER = r"\d{1,9}(?:\.\d{1,9})?|\.\d{1,9}"
_WHOLE = r"\d{1,9}"
_SAMPLED = re.compile(rf"t(?P<t>{_NUMBER})(?:-k(?P<k>{_WHOLE}))?(?:-p(?P<p>{_NUMBER}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class SamplingMethod:
    """Temperature 0 is greedy; top_k 0 and top_p 1 are off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    @property
    def name(self) -> str:
        """What `parse` reads; every method has exactly one."""
        if not self.temperature:
            return "greedy"
        top_k = f"-k{self.top_k}" if self.top_k else ""
        top_p = f"-p{_shown(self.top_p)}" if self.top_p < 1 else ""
        return f"t{_shown(self.temperature)}{top_k}{top_p}"


def _shown(number: float) -> str:
    """Without an exponent, which nobody writes."""
    return f"{number:.9f}".rstrip("0").rstrip(".")


def parse(text: str) -> SamplingMethod:
    """A name taken apart; `InvalidRequest` says what is wrong with it and what to write."""
    name = text.strip()
    if name == "greedy":
        return SamplingMethod()
    found = _SAMPLED.fullmatch(name)
    if found is None:
        raise InvalidRequest(f"sampling: {name!r} is not understood; write {GRAMMAR}")
    temperature, top_k, top_p = float(found["t"]), int(found["k"] or 0), float(found["p"] or 1)
    if not temperature:
        raise InvalidRequest(f"sampling: {name!r}: temperature 0 is written greedy, with nothing after it")
    if found["k"] and not top_k:
        raise InvalidRequest(f"sampling: {name!r}: top-k must be at least 1; leave -k{found['k']} out to have none")
    if not 0 < top_p <= 1:
        raise InvalidRequest(f"sampling: {name!r}: top-p must be above 0 and at most 1, as in p0.9")
    return SamplingMethod(temperature, top_k, top_p)


def parse_all(text: str) -> list[SamplingMethod]:
    """A comma-separated list; each way once."""
    methods = [parse(piece) for piece in text.split(",") if piece.strip()]
    if not methods:
        raise InvalidRequest(f"sampling: give at least one: {GRAMMAR}")
    twice = [method.name for i, method in enumerate(methods) if method in methods[:i]]
    if twice:
        raise InvalidRequest(f"sampling: {twice[0]} is named twice")
    return methods
