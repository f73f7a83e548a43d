"""What is asked: the built-in suite, or a file in Spec-Bench's format. No torch here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from outrider.errors import InvalidRequest

CATEGORIES = ("chat", "code", "edit", "summarise", "translate", "maths", "qa")


@dataclass(frozen=True, slots=True)
class Question:
    """One conversation: the user's turns. Each later turn is asked after the answer to the one before."""

    id: str
    category: str
    turns: tuple[str, ...]


def builtin() -> list[Question]:
    """The suite written for this project, one file per category."""
    folder = files("outrider.bench") / "suite"
    return [
        question
        for category in CATEGORIES
        for question in _parse((folder / f"{category}.jsonl").read_text(encoding="utf-8"), f"{category}.jsonl")
    ]


def read_questions(path: Path) -> list[Question]:
    """A file in Spec-Bench's format: per line an object with question_id, category and turns."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"questions: {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"questions: {path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    questions = list(_parse(text, str(path)))
    if not questions:
        raise InvalidRequest(f"questions: {path} holds none")
    ids = [question.id for question in questions]
    if len(set(ids)) < len(ids):
        raise InvalidRequest(f"questions: {path} uses a question_id twice")
    return questions


def spread(questions: Sequence[Question], limit: int | None) -> list[Question]:
    """At most `limit` questions, as evenly over the categories as they allow, in the original order.

    Within a category they are taken at equal distances, so that a short run does not only see its beginning.
    """
    if limit is None or limit >= len(questions):
        return list(questions)
    groups: dict[str, list[int]] = {}
    for index, question in enumerate(questions):
        groups.setdefault(question.category, []).append(index)
    shares = dict.fromkeys(groups, 0)
    while sum(shares.values()) < limit:
        for category, members in groups.items():
            if shares[category] < len(members) and sum(shares.values()) < limit:
                shares[category] += 1
    chosen = [
        members[place * len(members) // shares[category]]
        for category, members in groups.items()
        for place in range(shares[category])
    ]
    return [questions[index] for index in sorted(chosen)]


def interleaved(questions: Sequence[Question]) -> list[Question]:
    """The questions in turn, one of each category, so that a machine that slows down slows all categories alike."""
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(question.category, []).append(question)
    longest = max(map(len, groups.values()), default=0)
    return [group[i] for i in range(longest) for group in groups.values() if i < len(group)]


def _parse(text: str, source: str) -> Iterator[Question]:
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: U+2028 may stand in a string
        if line.strip():
            yield _question(line, f"questions: line {number} of {source}")


def _question(line: str, where: str) -> Question:
    try:
        entry: Any = json.loads(line)
        turns = entry["turns"]
        good = isinstance(turns, list) and turns and all(isinstance(turn, str) and turn for turn in turns)
        if not good:
            raise InvalidRequest(f"{where}: turns must be a list of texts")
        return Question(str(entry["question_id"]), str(entry["category"]), tuple(turns))
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, InvalidRequest):
            raise
        raise InvalidRequest(f"{where} is not an object with question_id, category and turns") from error
