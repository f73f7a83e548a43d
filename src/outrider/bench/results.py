"""The result of a run as it is kept: one JSON document, written and read here. No torch here.

The measurements, and the waves of several requests at a time, are the truth; "arms" is computed from the first (see
`summary`) and "never_slower" from the second.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from outrider.bench.bystanders import LIMIT
from outrider.bench.never_slower import FAILS, never_slower
from outrider.bench.summary import summarise
from outrider.bench.timing import Timing
from outrider.bench.waves import Cell, TimedAnswer, Wave
from outrider.errors import InvalidRequest

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Measurement:
    """A timing, and what it was a timing of."""

    arm: str
    question: str
    category: str
    turn: int
    prompt_tokens: int
    timing: Timing
    other_work: float | None = None
    """Processors busy with something else meanwhile; None: not known."""

    @property
    def asked(self) -> tuple[str, int]:
        """What all arms of a run have in common."""
        return (self.question, self.turn)


@dataclass
class Results:
    """`settings` decide whether two runs may be continued or compared; `skipped` maps arms that did not run to why."""

    settings: dict[str, Any]
    provenance: dict[str, Any]
    arms: list[str]
    skipped: dict[str, str] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    waves: list[Wave] = field(default_factory=list)
    complete: bool = False

    def of(self, arm: str) -> list[Measurement]:
        return [each for each in self.measurements if each.arm == arm]

    @property
    def measured(self) -> bool:
        """Whether anything was measured."""
        return bool(self.measurements or self.waves)

    @property
    def fails(self) -> bool:
        """Whether an arm is clearly slower than plain decoding in some cell."""
        return any(entry["verdict"] == FAILS for entry in never_slower(self.arms, self.waves))

    @property
    def disturbed(self) -> list[str]:
        """Questions during which other work ran on the machine, in any arm."""
        return list(dict.fromkeys(each.question for each in self.measurements if (each.other_work or 0.0) > LIMIT))

    def judged(self, arm: str) -> list[Measurement]:
        """What counts for this arm: disturbed questions are left out, for all arms alike, unless most are."""
        left_out = set(self.disturbed) if self.leaves_out_disturbed else set()
        return [each for each in self.of(arm) if each.question not in left_out]

    @property
    def leaves_out_disturbed(self) -> bool:
        return 2 * len(self.disturbed) <= len({each.question for each in self.measurements})

    def drop(self, arm: str, why: str) -> None:
        """Forget an arm that failed: its part of the questions would not compare."""
        self.arms.remove(arm)
        self.skipped[arm] = why
        self.measurements = [each for each in self.measurements if each.arm != arm]
        self.waves = [wave for wave in self.waves if wave.arm != arm]

    def document(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "complete": self.complete,
            "arms": summarise(
                self.arms, {arm: self.judged(arm) for arm in self.arms}, sampled=self.settings["temperature"] > 0
            ),
            "never_slower": never_slower(self.arms, self.waves),
            "skipped": [{"arm": arm, "why": why} for arm, why in self.skipped.items()],
            "disturbed": {"questions": self.disturbed, "left_out": self.leaves_out_disturbed},
            "settings": self.settings,
            "provenance": self.provenance,
            "measurements": [_flat(each) for each in self.measurements],
            "waves": [_flat_wave(wave) for wave in self.waves],
        }

    def dumps(self) -> str:
        """The document, indented down to the measurements and waves, which take a line each."""
        document = self.document()
        long = {name: document.pop(name) for name in ("measurements", "waves")}
        text = json.dumps(document, indent=1, ensure_ascii=False).removesuffix("\n}")
        for name, entries in long.items():
            lines = ",".join("\n  " + json.dumps(entry, separators=(",", ":")) for entry in entries)
            text += f',\n "{name}": [{lines}\n ]'
        return text + "\n}\n"

    def save(self, path: Path) -> None:
        """In one go: a reader sees the old file or the new one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            beside.write_text(self.dumps(), encoding="utf-8")
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    @staticmethod
    def load(path: Path) -> Results:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["format"] != FORMAT:
                raise InvalidRequest(f"{path} has format {document['format']}; this version reads {FORMAT}")
            return Results(
                settings=_settings(document["settings"]),
                provenance=document["provenance"],
                arms=[entry["arm"] for entry in document["arms"]],
                skipped={entry["arm"]: entry["why"] for entry in document["skipped"]},
                measurements=[_measurement(entry) for entry in document["measurements"]],
                waves=[_wave(entry) for entry in document.get("waves", ())],  # older files have none
                complete=bool(document["complete"]),
            )
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be read: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if isinstance(error, InvalidRequest):
                raise
            raise InvalidRequest(f"{path} is not a result of `outrider bench`") from error


def _settings(read: dict[str, Any]) -> dict[str, Any]:
    """As read, if it says what figures are shown with."""
    kinds = {"model": str, "dtype": str, "suite": str, "max_tokens": int, "temperature": int | float}
    if not all(isinstance(read[name], kind) for name, kind in kinds.items()):
        raise TypeError("settings of another kind")
    return read


def by_question(measurements: Iterable[Measurement]) -> dict[tuple[str, int], Measurement]:
    """One arm's measurements by what was asked."""
    return {each.asked: each for each in measurements}


def finished(results: Results, turns: Mapping[str, int]) -> set[str]:
    """Questions every arm has answered in all their turns (`turns`: question → how many)."""
    counts: dict[str, int] = {}
    for each in results.measurements:
        counts[each.question] = counts.get(each.question, 0) + 1
    return {question for question, many in turns.items() if counts.get(question, 0) == many * len(results.arms)}


def finished_rounds(waves: Sequence[Wave], arms: Sequence[str]) -> set[tuple[Cell, int]]:
    """Rounds, each of a cell, that all these arms have been through."""
    counts = Counter((wave.cell, wave.round) for wave in waves if wave.arm in arms)
    return {round_ for round_, count in counts.items() if count == len(arms)}


def _flat(each: Measurement) -> dict[str, Any]:
    flat = asdict(each)
    timing, other_work = flat.pop("timing"), flat.pop("other_work")
    return {**flat, **_flat_timing(timing), "other_work": other_work}


def _flat_wave(wave: Wave) -> dict[str, Any]:
    return {
        "arm": wave.arm,
        **asdict(wave.cell),
        "round": wave.round,
        "seconds": round(wave.seconds, 6),
        "other_work": wave.other_work,
        "answers": [
            {
                "question": answer.question,
                "prompt_tokens": answer.prompt_tokens,
                **_flat_timing(asdict(answer.timing)),
            }
            for answer in wave.answers
        ],
    }


def _flat_timing(timing: dict[str, Any]) -> dict[str, Any]:
    return {**timing, **{name: round(timing[name], 6) for name in ("prefill_seconds", "decode_seconds")}}


def _measurement(entry: Mapping[str, Any]) -> Measurement:
    return Measurement(
        arm=entry["arm"],
        question=entry["question"],
        category=entry["category"],
        turn=entry["turn"],
        prompt_tokens=entry["prompt_tokens"],
        timing=_timing(entry),
        other_work=entry["other_work"],
    )


def _wave(entry: Mapping[str, Any]) -> Wave:
    return Wave(
        arm=entry["arm"],
        cell=Cell(entry["concurrency"], entry["sampling"]),
        round=entry["round"],
        seconds=entry["seconds"],
        answers=tuple(
            TimedAnswer(answer["question"], answer["prompt_tokens"], _timing(answer)) for answer in entry["answers"]
        ),
        other_work=entry["other_work"],
    )


def _timing(entry: Mapping[str, Any]) -> Timing:
    def ids(values: Sequence[int] | None) -> tuple[int, ...] | None:
        return None if values is None else tuple(values)

    return Timing(
        tokens=entry["tokens"],
        token_ids=ids(entry["token_ids"]),
        passes=ids(entry["passes"]),
        prefill_seconds=entry["prefill_seconds"],
        decode_seconds=entry["decode_seconds"],
        drafted=entry["drafted"],
    )
