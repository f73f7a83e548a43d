"""Is an arm ever slower than plain decoding? The verdict on every cell, from the waves alone. No torch here.

A cell's figure is the mean of its rounds' ratios of tokens per second, prompts included, both arms on the same
requests; its 95% interval is Student's over the rounds' logarithms. Where all of it lies below `LEAST`, the cell fails.
Rounds disturbed by other work on the machine are left out, for all arms, unless fewer than half, or than two, would be
left.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from outrider.bench.bystanders import LIMIT
from outrider.bench.names import pairs
from outrider.bench.statistics import Interval, paired_ratio, percentiles
from outrider.bench.summary import acceptance
from outrider.bench.waves import Wave

LEAST = 0.97
HOLDS, UNCLEAR, FAILS = "holds", "unclear", "fails"
_PERCENTILES = (5, 50, 95)


def never_slower(arms: Sequence[str], waves: Sequence[Wave]) -> list[dict[str, Any]]:
    """An entry per cell and arm that speculates; a cell needs two rounds that both arms have finished."""
    entries = []
    for cell in dict.fromkeys(wave.cell for wave in waves):
        here = [wave for wave in waves if wave.cell == cell]
        disturbed = {wave.round for wave in here if (wave.other_work or 0.0) > LIMIT}
        rounds = {arm: {wave.round: wave for wave in here if wave.arm == arm} for arm in arms}
        for arm, plain in pairs(arms):
            both = [number for number in rounds[arm] if number in rounds[plain]]
            calm = [number for number in both if number not in disturbed]
            kept = calm if len(calm) >= max(2, len(both) / 2) else both
            if len(kept) < 2:
                continue
            own, theirs = ([rounds[name][number] for number in kept] for name in (arm, plain))
            entries.append(
                {
                    "concurrency": cell.concurrency,
                    "sampling": cell.sampling,
                    "arm": arm,
                    "reference": plain,
                    **_judged(own, theirs),
                    **_identity([rounds[arm][number] for number in both], [rounds[plain][number] for number in both]),
                    "rounds": len(kept),
                    "disturbed": len(both) - len(calm),
                    "left_out": len(both) - len(kept),
                    "figures": _figures(own),
                    "reference_figures": _figures(theirs),
                }
            )
    return entries


def verdict(found: Interval) -> str:
    """`unclear`: the interval has both slower and not slower in it; more rounds narrow it."""
    return FAILS if found.high < LEAST else HOLDS if found.low >= LEAST else UNCLEAR


def _judged(own: Sequence[Wave], theirs: Sequence[Wave]) -> dict[str, Any]:
    """Speed, over the rounds that count, paired."""
    found = paired_ratio([wave.rate for wave in own], [wave.rate for wave in theirs])
    ratios = _medians([_compared(mine, other) for mine, other in zip(own, theirs, strict=True)])
    worst = min(range(len(ratios)), key=ratios.__getitem__)
    return {
        "ratio": found.value,
        "low": found.low,
        "high": found.high,
        "half_width": (found.high - found.low) / 2,
        "verdict": verdict(found),
        "worst_request": {"question": own[0].answers[worst].question, "ratio": ratios[worst]},
        "tokens_per_pass": acceptance([answer.timing for wave in own for answer in wave.answers])[
            "mean_acceptance_length"
        ],
    }


def _compared(mine: Wave, other: Wave) -> list[float]:
    """Of every request, how much faster it was answered."""
    return [a.timing.rate / b.timing.rate for a, b in zip(mine.answers, other.answers, strict=True)]


def _identity(own: Sequence[Wave], theirs: Sequence[Wave]) -> dict[str, int]:
    """Over all rounds: other work on the machine may change the time, but not the tokens."""
    same = [
        a.timing.token_ids == b.timing.token_ids
        for mine, other in zip(own, theirs, strict=True)
        for a, b in zip(mine.answers, other.answers, strict=True)
    ]
    return {"identical": sum(same), "answers": len(same)}


def _figures(waves: Sequence[Wave]) -> dict[str, Any]:
    """Medians over the rounds, of the whole and of every request; percentiles are over requests."""
    first_tokens = [[answer.timing.prefill_seconds for answer in wave.answers] for wave in waves]
    return {
        "tokens_per_second": median(wave.rate for wave in waves),
        "request_tokens_per_second": _spread(_speeds(waves)),
        "first_token_seconds": _spread(_medians(first_tokens)),
    }


def _speeds(waves: Sequence[Wave]) -> list[float]:
    """Of every request, from asking to its last token."""
    return _medians([[answer.timing.rate for answer in wave.answers] for wave in waves])


def _medians(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [median(of_request) for of_request in zip(*rounds, strict=True)]


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {f"p{at}": value for at, value in zip(_PERCENTILES, percentiles(values, _PERCENTILES), strict=True)}
