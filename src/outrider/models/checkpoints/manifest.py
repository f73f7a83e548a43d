"""A list of what a converted model folder holds, written last: a folder without a good one is not a model.

Sizes are checked every time a model is opened (no cost), hashes when it is pulled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "outrider.json"
_BLOCK = 1 << 20


def write_manifest(folder: Path, hashes: Mapping[str, str]) -> None:
    """Record the files of `folder` with their sizes and sha256."""
    files = {
        name: {"size": (folder / name).stat().st_size, "sha256": digest} for name, digest in sorted(hashes.items())
    }
    (folder / NAME).write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")


def is_complete(folder: Path) -> bool:
    """Every file is there at its full size."""
    files = _read(folder)
    return files is not None and all(_size(folder / name) == item["size"] for name, item in files.items())


def is_intact(folder: Path) -> bool:
    """Every file is there, byte for byte as it was written."""
    files = _read(folder)
    return is_complete(folder) and all(sha256(folder / name) == item["sha256"] for name, item in (files or {}).items())


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        files = json.loads((folder / NAME).read_text(encoding="utf-8"))["files"]
        return {str(name): {"size": int(item["size"]), "sha256": str(item["sha256"])} for name, item in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
