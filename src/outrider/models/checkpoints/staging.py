"""Makes a folder appear whole or not at all.

Work happens in a hidden folder beside the destination, which is renamed into place at the end. One process
works at a time; another waits and finds the result. Whoever works may remove what a killed process left.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from outrider.errors import ModelError
from outrider.models.checkpoints.progress import Progress

_PREFIX = ".staging-"
_FULL = {errno.ENOSPC, errno.EDQUOT}


def make_folder(
    destination: Path, is_good: Callable[[Path], bool], make: Callable[[Path], None], progress: Progress
) -> None:
    """Have `make` fill a new folder and put it at `destination`, unless what is there `is_good` already.

    A destination that is not good is replaced. On any error nothing is left behind.
    """
    parent = destination.parent
    with _explained(parent):
        parent.mkdir(parents=True, exist_ok=True)
        with _lock(parent / ".lock", progress) as alone:
            if alone:
                _remove_stale(parent)
            if is_good(destination):
                return
            staging = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            try:
                fresh = staging / "new"
                fresh.mkdir()
                make(fresh)
                if destination.exists() and not is_good(destination):
                    destination.rename(staging / "old")
                try:
                    fresh.rename(destination)
                except OSError:
                    if not is_good(destination):  # else another process was first, where locks do not work
                        raise
            finally:
                shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[bool]:
    """Wait to be the only one; False where the system has no such locks (then the last rename decides)."""
    try:
        import fcntl
    except ImportError:
        yield False
        return
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.task("Waiting for another process to finish", None):
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            yield False
            return
        yield True  # released when the file is closed, also when the process is killed


def _remove_stale(parent: Path) -> None:
    for left in parent.glob(_PREFIX + "*"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Say what to do about a full disk or a folder that cannot be written."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise _disk_full(folder) from error
        raise ModelError(
            f"cannot write in {folder}: {error.strerror or error}; set OUTRIDER_CACHE to a folder that can be written."
        ) from error


def require_space(folder: Path, needed: int) -> None:
    """Fail before the work rather than in the middle of it."""
    if shutil.disk_usage(folder).free < needed:
        raise _disk_full(folder, f"{needed / 1e6:.0f} MB is")


def _disk_full(folder: Path, needed: str = "more space is") -> ModelError:
    return ModelError(
        f"the disk that holds {folder} is full and {needed} needed; free some, or set OUTRIDER_CACHE to another disk."
    )
