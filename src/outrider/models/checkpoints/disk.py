"""What Outrider keeps on the disk: how much it is, and how it is removed."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from outrider.errors import ModelError, shown
from outrider.models.checkpoints.catalog import CATALOG, cache_root

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
COSTS = "costs"


class Place(NamedTuple):
    """Something kept."""

    what: str
    path: Path
    bytes: int


def places() -> list[Place]:
    """Every cache there is, models by name first, then what the hub's own cache holds."""
    root = cache_root()
    folders = [(f"model {name}", root / "models" / name) for name in CATALOG]
    folders += [("measured costs", root / COSTS), ("programs that bench measures", root / "peers")]
    folders.append(("models from the hub (shared with other programs)", hub_cache()))
    return [Place(what, path, used(path)) for what, path in folders if path.exists()]


def remove(name: str, *, dry_run: bool = False) -> Place:
    """Let go of a model by its known name or hub id, or of the `costs`; `ModelError` where there is none."""
    if name in CATALOG:
        path = cache_root() / "models" / name
    elif name == COSTS:
        path = cache_root() / COSTS
    elif HUB_ID.fullmatch(name):
        path = hub_cache() / f"models--{name.replace('/', '--')}"
    else:
        raise ModelError(
            f"there is no model {shown(name)} to remove: give a known name ({', '.join(CATALOG)}), a hub id (org/name) "
            f"or {COSTS}; folders and files of your own are yours to delete."
        )
    if not path.exists():
        raise ModelError(f"{name} is not here: there is no {path}.")
    place = Place(name, path, used(path))
    if not dry_run:
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise ModelError(f"cannot remove {path}: {error.strerror or error}.") from error
    return place


def used(path: Path) -> int:
    """Bytes in a folder; what is linked twice counts once."""
    files = {entry.lstat().st_ino: entry.lstat().st_size for entry in path.rglob("*") if not entry.is_dir()}
    return sum(files.values())


def hub_cache() -> Path:
    """Where huggingface_hub keeps what it fetches, as its own variables say."""
    if own := os.environ.get("HF_HUB_CACHE"):
        return Path(own).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"


def megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} KB"
