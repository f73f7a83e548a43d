"""Heads that come with the package, by the catalogue name of their target."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent / "data"


def shipped_head(model: str) -> Path | None:
    folder = _FOLDER / model  # a path of its own where `model` is one: not ours then
    return folder if folder.parent == _FOLDER and (folder / "config.json").is_file() else None
