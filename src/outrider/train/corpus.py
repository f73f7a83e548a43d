"""What the target wrote, on disk: shards that appear whole or not at all, and are only ever added.

A shard is an .npz file: tokens of all its samples one after the other, lengths, spans, numbers, families and tags.
It is written under another name, flushed to the disk, then renamed; whatever a killed process left is never read.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from outrider.errors import TrainingError
from outrider.sampling.noise import hash64
from outrider.train.jobs import Sample

_ABOUT, _SHARD, _UNFINISHED = "about.json", "shard-{:06d}.npz", "unfinished"

_ONE_IN, _GREEDY = 50, 8
"""Families held out, and how many with greedy answers at the least."""


class Corpus:
    """Samples in the order they were added: those on disk, to which `flush` adds.

    Invariant: everything up to the last flush survives a kill. One family in fifty is held out, whatever else the
    corpus holds; of a small corpus a few more, so that there are greedy answers to judge by.
    """

    def __init__(
        self, folder: Path, vocab_size: int, about: Mapping[str, Any] | None = None, *, reserve: int = 1 << 27
    ) -> None:
        """Open or make one. `about` (the target, the recipe: JSON) must be what it was made with, where it is given.
        `reserve`: bytes to leave free on the disk, for what else training writes."""
        self.folder, self._reserve = folder, reserve
        self._dtype = np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
        self.vocab_size = vocab_size
        self._tokens: list[npt.NDArray[Any]] = []
        self._spans: list[tuple[tuple[int, int], ...]] = []
        self._tags: list[str] = []
        self._numbers: list[int] = []
        self._temperatures: list[float] = []
        self._families: list[int] = []
        self._looped: list[bool] = []
        self._aside: tuple[int, set[int]] = -1, set()
        """The number of samples, and the families held out of so many."""
        self._saved = self._shards = 0
        self.tokens = self.answer_tokens = self.unsaved_tokens = 0
        with _explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob(_UNFINISHED + "*"):
                left.unlink()
        self.about = self._agreed(dict(about) if about is not None else None)
        while (path := folder / _SHARD.format(self._shards)).exists():
            self._read(path)
            self._shards += 1
        self._saved = len(self._tokens)
        self.tokens = sum(map(len, self._tokens))
        self.answer_tokens = sum(stop - start for spans in self._spans for start, stop in spans)

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> Sample:
        return Sample(
            self._tokens[index],
            self._spans[index],
            self._tags[index],
            self._numbers[index],
            self._temperatures[index],
            self._families[index],
            self._looped[index],
        )

    @property
    def families(self) -> set[int]:
        """Of samples safely on disk: what `Plan` need not make again."""
        return set(self._families[: self._saved])

    def lengths(self) -> npt.NDArray[np.int64]:
        return np.array([len(tokens) for tokens in self._tokens], np.int64)

    def answer_starts(self) -> npt.NDArray[np.int64]:
        """Where each sample's first answer begins."""
        return np.array([spans[0][0] if spans else 0 for spans in self._spans], np.int64)

    def held_out(self, index: int) -> bool:
        if self._aside[0] != len(self):
            self._aside = len(self), _held_out(self._families, self._temperatures)
        return self._families[index] in self._aside[1]

    @property
    def loops(self) -> int:
        """How many answers were cut where they loop."""
        return sum(self._looped)

    def tags(self) -> dict[str, int]:
        """How many samples of each."""
        return {tag: self._tags.count(tag) for tag in sorted(set(self._tags))}

    def counts(self) -> npt.NDArray[np.int64]:
        """How often the target wrote each token [vocab], held-out samples left aside."""
        parts = [
            tokens[start:stop]
            for i, (tokens, spans) in enumerate(zip(self._tokens, self._spans, strict=True))
            if not self.held_out(i)
            for start, stop in spans
        ]
        return np.bincount(np.concatenate([np.zeros(0, self._dtype), *parts]), minlength=self.vocab_size)

    def add(self, sample: Sample) -> None:
        """In memory until the next `flush`."""
        if len(sample.tokens) and int(sample.tokens.max()) >= self.vocab_size:
            raise TrainingError(f"sample {sample.number} has a token outside the vocabulary of {self.vocab_size}.")
        self._tokens.append(sample.tokens.astype(self._dtype))
        self._spans.append(sample.spans)
        self._tags.append(sample.tag)
        self._numbers.append(sample.number)
        self._temperatures.append(sample.temperature)
        self._families.append(sample.family)
        self._looped.append(sample.looped)
        self.tokens += len(sample.tokens)
        self.unsaved_tokens += len(sample.tokens)
        self.answer_tokens += sum(stop - start for start, stop in sample.spans)

    def flush(self) -> None:
        """Put what was added since the last flush on disk, as one shard."""
        new = slice(self._saved, len(self._tokens))
        if new.start == new.stop:
            return
        names = sorted(set(self._tags[new]))
        spans = self._spans[new]
        arrays: dict[str, npt.NDArray[Any]] = {
            "tokens": np.concatenate(self._tokens[new]),
            "lengths": np.array([len(tokens) for tokens in self._tokens[new]], np.int32),
            "spans": np.array([edge for each in spans for span in each for edge in span], np.int32),
            "span_counts": np.array(list(map(len, spans)), np.int32),
            "numbers": np.array(self._numbers[new], np.int64),
            "temperatures": np.array(self._temperatures[new], np.float32),
            "families": np.array(self._families[new], np.int64),
            "looped": np.array(self._looped[new], np.bool_),
            "tags": np.array([names.index(tag) for tag in self._tags[new]], np.int32),
            "tag_names": np.frombuffer(json.dumps(names).encode(), np.uint8),
        }
        needed = sum(array.nbytes for array in arrays.values())
        if shutil.disk_usage(self.folder).free < needed + self._reserve:
            raise DiskFull(self.folder, needed + self._reserve)
        _write(self.folder / _SHARD.format(self._shards), lambda file: np.savez(file, allow_pickle=False, **arrays))
        self._shards += 1
        self._saved, self.unsaved_tokens = len(self._tokens), 0

    def _read(self, path: Path) -> None:
        try:
            with np.load(path, allow_pickle=False) as shard:
                arrays = {name: shard[name] for name in shard.files}
            names: list[str] = json.loads(arrays["tag_names"].tobytes())
            edges = iter(arrays["spans"].reshape(-1, 2).tolist())
            self._tokens += np.split(arrays["tokens"], np.cumsum(arrays["lengths"])[:-1])
            self._spans += [
                tuple((start, stop) for start, stop in (next(edges) for _ in range(count)))
                for count in arrays["span_counts"].tolist()
            ]
            self._tags += [names[i] for i in arrays["tags"].tolist()]
            self._numbers += arrays["numbers"].tolist()
            self._temperatures += arrays["temperatures"].tolist()
            self._families += arrays["families"].tolist()
            # The first shards there were say nothing of loops: nothing was cut.
            self._looped += arrays.get("looped", np.zeros(len(arrays["families"]), np.bool_)).tolist()
        except (OSError, ValueError, LookupError, RuntimeError, zipfile.BadZipFile) as error:
            raise TrainingError(f"the shard {path} is damaged ({error}); remove it and those after it.") from error

    def _agreed(self, about: dict[str, Any] | None) -> dict[str, Any]:
        """What the corpus was made with: as given for a new one, as recorded for an old one."""
        path = self.folder / _ABOUT
        if path.exists():
            try:
                recorded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
                if recorded.pop("vocab_size") != self.vocab_size:
                    raise TrainingError(f"{self.folder} is of a model with another vocabulary; use another folder.")
            except (OSError, ValueError, LookupError, AttributeError) as error:
                raise TrainingError(f"{path} cannot be read ({error}); use another folder.") from error
            if about is not None and json.loads(json.dumps(about)) != recorded:
                raise TrainingError(f"{self.folder} was written with another target or recipe; use another folder.")
            return recorded
        text = json.dumps({"vocab_size": self.vocab_size, **(about or {})}, indent=1).encode()
        _write(path, lambda file: file.write(text))
        return about or {}


def _held_out(families: Sequence[int], temperatures: Sequence[float]) -> set[int]:
    """Sorted by chance, the first; of those with greedy answers at least `_GREEDY`, but never more than a tenth."""
    chance = {family: hash64("held out", family) for family in set(families)}
    order = sorted(chance, key=lambda family: (chance[family] % _ONE_IN, chance[family]))
    with_greedy = {family for family, temperature in zip(families, temperatures, strict=True) if temperature == 0}
    least = min(_GREEDY, -(-len(with_greedy) // 10))
    return {family for family in order if chance[family] % _ONE_IN == 0} | set(
        [family for family in order if family in with_greedy][:least]
    )


class DiskFull(TrainingError):
    """Nothing was lost: a shard that does not fit is not begun."""

    def __init__(self, folder: Path, needed: int | None = None) -> None:
        room = "" if needed is None else f" ({needed / 1e6:.0f} MB are needed)"
        super().__init__(
            f"the disk that holds {folder} is full{room}; free some space and go on with --resume: "
            f"what was written before is intact."
        )


def _write(path: Path, fill: Callable[[IO[bytes]], Any]) -> None:
    """A file that appears whole, and is on the disk when it does."""
    unfinished = path.with_name(f"{_UNFINISHED}-{path.name}")
    with _explained(path.parent):
        try:
            with unfinished.open("wb") as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(path)
        except OSError:
            with suppress(OSError):
                unfinished.unlink()
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name, too
        finally:
            os.close(folder)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(folder) from error
        raise TrainingError(f"cannot write in {folder}: {error.strerror or error}; choose another folder.") from error
