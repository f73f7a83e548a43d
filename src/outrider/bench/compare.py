"""Two results of the same questions: what got clearly better or worse, and what is noise. No torch here.

A machine's speed drifts, by tens of percent on shared ones, and two runs are hours apart. So an arm is judged by its
speed relative to a control measured beside it in the same run: another program that has not changed in between, or,
without one, our own plain decoding. Per question the ratio after / before is taken; the 95% interval of its mean
comes from resampling stretches of neighbouring questions, so that drift within a run widens it. A change counts as
clear when the interval excludes zero and the change is larger than `_CLEAR`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from outrider.bench.names import parse, reference
from outrider.bench.results import Measurement, Results, by_question
from outrider.bench.statistics import Interval, mean_interval
from outrider.errors import InvalidRequest

_CLEAR = 0.03
_SAME = ("model", "max_tokens", "temperature", "seed")

Answers = Mapping[tuple[str, int], Measurement]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One thing that was judged. `worse`: clearly, and by our own doing."""

    arm: str
    worse: bool
    sentence: str


def compare(before: Results, after: Results) -> list[Comparison]:
    """Judge every arm the two have in common: speed, tokens per pass, and whether the tokens are still plain's."""
    for name in _SAME:
        old, new = before.settings.get(name), after.settings.get(name)
        if old != new:
            raise InvalidRequest(f"compare: the results differ in {name} ({old!r} and {new!r}); measure alike")
    shared = [arm for arm in after.arms if arm in before.arms]
    old_answers, new_answers = ({arm: by_question(each.judged(arm)) for arm in shared} for each in (before, after))
    verdicts = []
    for arm in shared:
        asked = [key for key in new_answers[arm] if key in old_answers[arm]]
        if not asked:
            raise InvalidRequest("compare: the results have no question, asked one by one, in common")
        control = _control(arm, shared, before, after)
        verdicts.append(_speed(arm, control, asked, old_answers, new_answers))
        if parse(arm).is_ours:
            verdicts += _per_pass(arm, asked, old_answers[arm], new_answers[arm])
            verdicts += _identity(arm, shared, asked, old_answers, new_answers)
    if not verdicts:
        raise InvalidRequest("compare: the results have no arm in common")
    return verdicts


def _control(arm: str, shared: list[str], before: Results, after: Results) -> str | None:
    """What tells the machine's own changes apart: an unchanged program, else our plain; none for that itself."""

    def versions(results: Results, name: str) -> object:
        return results.provenance.get("arms", {}).get(name)

    if not parse(arm).is_ours:
        return None
    unchanged = [name for name in shared if not parse(name).is_ours and versions(before, name) == versions(after, name)]
    plain_first = sorted(unchanged, key=lambda name: not parse(name).is_plain)
    if plain_first:
        return plain_first[0]
    plain = reference(arm, shared)
    return plain if plain != arm else None


def _speed(
    arm: str,
    control: str | None,
    asked: list[tuple[str, int]],
    before: Mapping[str, Answers],
    after: Mapping[str, Answers],
) -> Comparison:
    def change(name: str, key: tuple[str, int]) -> float:
        return math.log(after[name][key].timing.decode_rate / before[name][key].timing.decode_rate)

    usable = [key for key in asked if control is None or (key in before[control] and key in after[control])]
    changes = [change(arm, key) - (change(control, key) if control else 0.0) for key in usable]
    found = mean_interval(changes, block=max(1, math.isqrt(len(changes))))
    judged = f"relative to {control}" if control else "the machine's own drift included"
    verdict, worse = _judge(found)
    ours = parse(arm).is_ours
    low, high = (math.expm1(end) for end in (found.low, found.high))
    return Comparison(
        arm,
        worse and ours,
        f"{arm}: decode speed {math.expm1(found.value):+.1%} ({low:+.1%} to {high:+.1%}, {len(changes)} answers, "
        f"{judged}): {verdict if ours else 'not ours to judge'}",
    )


def _per_pass(arm: str, asked: list[tuple[str, int]], before: Answers, after: Answers) -> list[Comparison]:
    """Tokens per target pass do not depend on the machine, so they are compared as they are."""

    def length(each: Measurement) -> float:
        passes = (each.timing.passes or (1, 1))[1:]
        return sum(passes) / len(passes) if passes else 1.0

    old = [length(before[key]) for key in asked]
    new = [length(after[key]) for key in asked]
    if max(*old, *new) == 1.0:
        return []
    verdict, worse = _judge(mean_interval([math.log(n / o) for n, o in zip(new, old, strict=True)]))
    means = f"{sum(old) / len(old):.2f} → {sum(new) / len(new):.2f}"
    return [Comparison(arm, worse, f"{arm}: tokens per pass {means}: {verdict}")]


def _identity(
    arm: str,
    shared: list[str],
    asked: list[tuple[str, int]],
    before: Mapping[str, Answers],
    after: Mapping[str, Answers],
) -> list[Comparison]:
    """Fewer answers that equal plain decoding's is worse, whatever the speed."""
    plain = reference(arm, shared)
    if plain is None or plain == arm:
        return []

    def same(answers: Mapping[str, Answers]) -> int:
        own, theirs = answers[arm], answers[plain]
        return sum(own[key].timing.token_ids == theirs[key].timing.token_ids for key in asked if key in theirs)

    old, new = same(before), same(after)
    verdict = "worse" if new < old else "as before" if new == old else "better"
    return [
        Comparison(arm, new < old, f"{arm}: {new} of {len(asked)} answers equal {plain}'s, {old} before: {verdict}")
    ]


def _judge(found: Interval) -> tuple[str, bool]:
    """In words, and whether it is worse; of the logarithm of a ratio."""
    if found.high < 0 and found.value < -_CLEAR:
        return "clearly worse", True
    if found.low > 0 and found.value > _CLEAR:
        return "clearly better", False
    return "no clear change", False
