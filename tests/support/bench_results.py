"""Made-up results with known figures, for tests of what is computed from them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from outrider.bench.results import Measurement, Results
from outrider.bench.timing import Timing
from outrider.bench.waves import Cell, TimedAnswer, Wave

PROVENANCE = {
    "date": "2025-01-01T00:00:00+00:00", "commit": "abc", "uncommitted_changes": False, "cpu": "Some CPU", "cores": 2,
    "gpu": None, "threads": 2, "dtype": "bf16", "device": "cpu", "load_average_before": 0.0, "system": "Linux",
    "model": "m", "model_sha256": None, "versions": {"python": "3.11"}, "arms": {},
}  # fmt: skip
SETTINGS = {
    "model": "m", "suite": "made up", "questions": 1, "max_tokens": 9, "temperature": 0.0, "seed": 0, "dtype": "bf16",
    "device": "cpu", "threads": 2, "arms": [],
}  # fmt: skip
CELL = Cell(1, "greedy")


def timing(passes: Sequence[int], seconds: float, *, prefill: float = 0.5, ids: Sequence[int] | None = None) -> Timing:
    tokens = sum(passes)
    return Timing(tokens, tuple(ids or range(tokens)), tuple(passes), prefill, seconds, tokens)


def results(measurements: Sequence[Measurement], temperature: float = 0.0) -> Results:
    arms = list(dict.fromkeys(each.arm for each in measurements))
    settings = {**SETTINGS, "temperature": temperature, "arms": arms}
    return Results(settings, {**PROVENANCE, "arms": {}}, arms, {}, list(measurements), complete=True)


def noisy(
    rates: dict[str, float], *, seed: int, questions: int = 63, noise: float = 0.05, drift: float = 0.25
) -> Results:
    """A run of arms with these decode rates: every answer noisy, and a machine whose speed wanders."""
    chance = random.Random(seed)
    level: Callable[[int], float] = _wander(chance, drift)
    made = []
    for index in range(questions):
        for arm, rate in rates.items():
            speed = rate * math.exp(level(index) + chance.gauss(0, noise)) * (1 + 0.3 * math.sin(index))
            passes = [1] * 65
            made.append(Measurement(arm, f"q{index}", f"c{index % 3}", 0, 50, timing(passes, 64 / speed)))
    return results(made)


def _wander(chance: random.Random, size: float) -> Callable[[int], float]:
    """A run's own level, and a slow wave on top."""
    start, phase = chance.uniform(-size, size), chance.uniform(0, 6)
    return lambda index: start + size / 3 * math.sin(phase + index / 9)


def waves(rates: dict[str, Sequence[float]], cell: Cell = CELL) -> list[Wave]:
    """Per arm a wave for every rate, of two requests of 10 tokens each, one after the other."""
    made = []
    for arm, each in rates.items():
        for number, rate in enumerate(each):
            seconds = 10 / rate
            first, rest = round(0.1 * seconds, 6), round(0.9 * seconds, 6)  # as a file keeps them
            answers = [TimedAnswer(name, 9, timing([1] * 10, rest, prefill=first)) for name in "ab"]
            made.append(Wave(arm, cell, number, 2 * seconds, tuple(answers)))
    return made


def of_waves(made: Sequence[Wave]) -> Results:
    found = results([])
    found.arms = list(dict.fromkeys(wave.arm for wave in made))
    found.waves = list(made)
    return found
