"""Files that appear whole or not at all, and what to say when the disk has no room for them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from outrider.errors import TrainingError

_FULL = {errno.ENOSPC, errno.EDQUOT}


def replace(path: Path, make: Callable[[IO[bytes]], object]) -> None:
    """Have `make` fill the file; until all of it is on the disk, the one before stays in its place."""
    half = path.with_name(path.name + ".part")
    try:
        with _Remembering(half) as file:
            make(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, path)
    except BaseException:
        with suppress(OSError):
            half.unlink()
        raise
    _sync_folder(path.parent)


def replace_text(path: Path, text: str) -> None:
    replace(path, lambda file: file.write(text.encode("utf-8")))


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """A full or read-only disk, in a sentence. What was saved before is intact: nothing is overwritten in place."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise TrainingError(
                f"the disk that holds {folder} is full; what was saved before is intact: "
                "free some space and go on with --resume"
            ) from error
        raise TrainingError(f"cannot write in {folder}: {error.strerror or error}") from error


class _Remembering:
    """A file opened for writing. Libraries turn a failed write into errors of their own; this one keeps the cause."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._error: OSError | None = None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._file.close()
        except OSError:
            if error is None:
                raise
        if self._error is not None and error is not self._error:
            raise self._error from error

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self._error = error
            raise

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()


def _sync_folder(folder: Path) -> None:
    """Makes a rename last; not every system lets a folder be opened."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
