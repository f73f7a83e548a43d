"""What a run tells as it goes: to whoever watches, and to DIR/log.jsonl, line by line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from outrider.train.files import explained

FILE = "log.jsonl"

Event = Mapping[str, Any]
"""`event` says which kind: phase, progress, evaluation, note or done. Numbers are finite."""


class Watcher(Protocol):
    def tell(self, event: Event) -> None: ...


class Log:
    """Passes every event on and keeps it. What a killed run told after its last checkpoint stays in the file:
    `history` leaves it out, as the resumed run tells it again."""

    def __init__(self, path: Path, watcher: Watcher) -> None:
        self._path = path
        self._watcher = watcher
        if path.is_file() and not path.read_bytes().endswith(b"\n"):
            with explained(path.parent), path.open("a", encoding="utf-8") as file:
                file.write("\n")  # the run before was killed in the middle of a line

    def tell(self, event: Event) -> None:
        with explained(self._path.parent), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(event), allow_nan=False) + "\n")
        self._watcher.tell(event)


def history(path: Path) -> list[dict[str, Any]]:
    """Progress and evaluations of training, steps rising."""
    kept: list[dict[str, Any]] = []
    for event in events(path):
        if event.get("event") in ("progress", "evaluation") and event.get("phase") == "train":
            again = event["event"], event["step"]
            while kept and kept[-1]["step"] > event["step"]:
                kept.pop()
            if not any((other["event"], other["step"]) == again for other in kept[-2:]):
                kept.append(event)
    return kept


def events(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # half a line, from a kill in the middle of it
        if isinstance(event, dict):
            yield event
