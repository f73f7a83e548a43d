"""Heads that come with the package, by the catalogue name of their target."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent / "data"


def shipped_head(model: str) -> Path | None:
    folder = _FOLDER / model
    # A model named by its path is none of the catalogue, and joining would give that path.
    return folder if folder.name == model and (folder / "config.json").is_file() else None
