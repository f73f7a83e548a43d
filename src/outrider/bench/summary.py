"""From measurements to the figures per arm: pure arithmetic over what was measured. No torch here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outrider.bench.names import parse, reference
from outrider.bench.statistics import quartiles, ratio_of_rates

if TYPE_CHECKING:
    from outrider.bench.results import Measurement
    from outrider.bench.timing import Timing

_GRAM, _TIMES = 8, 3
_POSITIONS = 16
"""Draft positions acceptance is reported for."""

Asked = tuple[str, int]


def summarise(
    arms: Sequence[str], measured: Mapping[str, Sequence[Measurement]], *, sampled: bool
) -> list[dict[str, Any]]:
    """One entry per arm, in order; an arm without measurements has zeros.

    `sampled` (temperature above 0): only our own arms draw with the same noise, so only they can be asked for the
    same tokens.
    """
    loops = looping(arms, measured)
    return [_entry(arm, arms, measured, loops, sampled) for arm in arms]


def _entry(
    arm: str,
    arms: Sequence[str],
    measured: Mapping[str, Sequence[Measurement]],
    loops: Collection[Asked],
    sampled: bool,
) -> dict[str, Any]:
    held_against = reference(arm, arms)
    own, theirs = list(measured[arm]), list(measured[held_against]) if held_against else []
    same_tokens = not sampled or parse(arm).is_ours

    def figures(part: Sequence[Measurement]) -> dict[str, Any]:
        return _figures(part, theirs, held_against, same_tokens)

    return {
        "arm": arm,
        **figures(own),
        "categories": {
            category: figures([each for each in own if each.category == category])
            for category in dict.fromkeys(each.category for each in own)
        },
        "without_loops": figures([each for each in own if each.asked not in loops]),
    }


def repeats(tokens: Sequence[int]) -> bool:
    """Does some run of 8 tokens occur three times? A small model that loops flatters every drafter."""
    seen: dict[tuple[int, ...], int] = {}
    for start in range(len(tokens) - _GRAM + 1):
        gram = tuple(tokens[start : start + _GRAM])
        seen[gram] = seen.get(gram, 0) + 1
        if seen[gram] == _TIMES:
            return True
    return False


def looping(arms: Sequence[str], measured: Mapping[str, Sequence[Measurement]]) -> set[Asked]:
    """What the first plain arm (else the first arm) answered in a loop."""
    plain = [arm for arm in arms if arm == reference(arm, arms)]
    judge = (plain or list(arms))[:1]
    answers = [each for arm in judge for each in measured[arm]]
    return {each.asked for each in answers if each.timing.token_ids and repeats(each.timing.token_ids)}


def _figures(
    own: Sequence[Measurement], theirs: Sequence[Measurement], held_against: str | None, same_tokens: bool
) -> dict[str, Any]:
    """Totals, medians and acceptance of one arm over some questions, beside the arm it is held against."""
    timings = [each.timing for each in own]
    low, median, high = quartiles([r.decode_rate for r in timings])
    _, prefill, _ = quartiles([r.prefill_seconds for r in timings])
    decoding = sum(r.decode_seconds for r in timings)
    whole = decoding + sum(r.prefill_seconds for r in timings)
    figures: dict[str, Any] = {
        "answers": len(timings),
        "tokens": sum(r.tokens for r in timings),
        "decode_tokens_per_second": _over(sum(r.decode_tokens for r in timings), decoding),
        "e2e_tokens_per_second": _over(sum(r.tokens for r in timings), whole),
        "prefill_seconds": _over(sum(r.prefill_seconds for r in timings), len(timings)),
        "prefill_seconds_median": prefill,
        "prompt_tokens": _over(sum(each.prompt_tokens for each in own), len(own)),
        "decode_tokens_per_second_median": median,
        "decode_tokens_per_second_quartiles": [low, high],
        **acceptance(timings),
    }
    pairs = _pairs(own, theirs)
    figures["reference"] = held_against
    known = [(a.timing.token_ids, b.timing.token_ids) for a, b in pairs]
    comparable = same_tokens and held_against is not None and all(a is not None and b is not None for a, b in known)
    figures["identical_to_plain"] = sum(a == b for a, b in known) if comparable else None
    figures["speedup"] = _speedup(pairs)
    return figures


def acceptance(timings: Sequence[Timing]) -> dict[str, Any]:
    """Over the passes after the first of each answer (the first is the prompt's).

    Position i: in what share of the passes at least i drafted tokens were accepted.
    """
    told = [timing for timing in timings if timing.passes is not None]
    passes = [gained for timing in told for gained in (timing.passes or ())[1:]]
    deepest = min(_POSITIONS, max(passes, default=1) - 1)
    drafted = [timing.drafted for timing in told if timing.drafted is not None]
    return {
        "mean_acceptance_length": _over(sum(passes), len(passes)) if told else None,
        "acceptance_per_position": [
            _over(sum(gained > i for gained in passes), len(passes)) for i in range(1, deepest + 1)
        ],
        "drafted": sum(drafted) if drafted and len(drafted) == len(told) else None,
    }


def _pairs(own: Sequence[Measurement], theirs: Sequence[Measurement]) -> list[tuple[Measurement, Measurement]]:
    other = {each.asked: each for each in theirs}
    return [(each, other[each.asked]) for each in own if each.asked in other]


def _speedup(pairs: Sequence[tuple[Measurement, Measurement]]) -> dict[str, float] | None:
    """Decode rate over the reference's, from totals; the interval says how much the choice of questions matters."""
    timed = [(a.timing, b.timing) for a, b in pairs if a.timing.decode_seconds > 0 and b.timing.decode_seconds > 0]
    if not timed or not all(b.decode_tokens for _, b in timed):
        return None
    total = ratio_of_rates(
        [a.decode_tokens for a, _ in timed],
        [a.decode_seconds for a, _ in timed],
        [b.decode_tokens for _, b in timed],
        [b.decode_seconds for _, b in timed],
    )
    low, median, high = quartiles([a.decode_rate / b.decode_rate for a, b in timed])
    return {
        "total": total.value,
        "low": total.low,
        "high": total.high,
        "median": median,
        "lower_quartile": low,
        "upper_quartile": high,
    }


def _over(amount: float, by: float) -> float:
    return amount / by if by else 0.0
