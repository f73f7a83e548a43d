"""What a training run is asked for, what that settles to, and the file that makes it repeatable."""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from outrider.errors import TrainingError

FILE = "settings.json"
SHIPPED = "shipped"
"""`--start-from` the head that comes with the package."""

_LEAST = {
    "tokens": 1,
    "minutes": 0,
    "epochs": 1,
    "layers": 1,
    "draft_vocab": 2,
    "learning_rate": 0,
    "batch_tokens": 16,
}
"""0: anything above it."""
_PATHS = ("model", "start_from", "prompts", "data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of `outrider train` as typed; None: not given. Names are those of `TrainConfig`."""

    model: str | None = None
    draft_model: bool | None = None
    start_from: str | None = None
    prompts: str | None = None
    data: str | None = None
    tokens: int | None = None
    minutes: float | None = None
    epochs: int | None = None
    layers: int | None = None
    draft_vocab: int | None = None
    taps: str | None = None
    loss: str | None = None
    learning_rate: float | None = None
    batch_tokens: int | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """All a run depends on beside the target's weights: the same settings give the same steps."""

    model: str
    draft_model: bool
    """A stand-alone model instead of a head."""
    start_from: str | None = None
    """A folder with a head or draft model, or `SHIPPED`; None: the target's own layers."""
    start_from_sha256: str | None = None
    """Of its weights."""
    prompts: str | None
    """A file of prompts; None: the target invents all of them."""
    prompts_sha256: str | None
    data: str | None
    """A corpus that an earlier run wrote; None: write one."""
    tokens: int
    """Tokens the target writes."""
    minutes: float | None
    epochs: int | None
    """Passes over the corpus. Of `minutes` and `epochs` one is given; of both, the first used up ends the run."""
    layers: int
    draft_vocab: int
    taps: str | None = None
    """Of the target's layers, those after which a head reads its state, as `2,15,27`; None: as it comes."""
    loss: str
    learning_rate: float
    batch_tokens: int
    seed: int

    @property
    def tapped(self) -> tuple[int, ...] | None:
        return None if self.taps is None else _tapped(self.taps)

    @property
    def command(self) -> str:
        """What gives these settings again; files by their names alone."""
        words = ["outrider", "train", "--out", "DIR"]
        for name, value in self.shown().items():
            if value is not False and not name.endswith("_sha256") and not (name == "tokens" and self.data):
                words += [option(name)] if value is True else [option(name), str(value)]
        return shlex.join(words)

    def shown(self) -> dict[str, Any]:
        """Those that are set, without the folders that files lie in."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        for name in _PATHS:
            if name in given and Path(given[name]).is_absolute():
                given[name] = Path(given[name]).name
        return given

    @staticmethod
    def settle(asked: Asked, defaults: Defaults, start: Start | None = None) -> TrainConfig:
        """`start`: of what is asked for to start from."""
        if start is not None:
            start.agree(asked)
            defaults = start.over(defaults)
        given = {name: value for name, value in asdict(asked).items() if value is not None}
        if asked.minutes is None and asked.epochs is None:
            given["epochs"] = defaults.epochs
        if asked.taps is not None:
            given["taps"] = as_text(_tapped(asked.taps))
        if asked.data is not None:
            given["data"] = str(Path(asked.data).expanduser().resolve())
        prompts = None
        if asked.prompts is not None:
            path = Path(asked.prompts).expanduser().resolve()
            given["prompts"], prompts = str(path), checksum(path)
        base = {name: value for name, value in asdict(defaults).items() if name != "epochs"}
        nothing = {"prompts": None, "data": None, "minutes": None, "epochs": None, "draft_model": False}
        begun = {} if start is None else {"start_from": start.name, "start_from_sha256": start.sha256}
        settings = TrainConfig(**{**base, **nothing, **given, **begun, "prompts_sha256": prompts})
        settings.check()
        return settings

    def check(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not (value >= least and value > 0):
                bound = f"at least {least}" if least else "above 0"
                raise TrainingError(f"{option(name)} must be {bound}, got {value}")
        if self.tapped is not None and self.draft_model:
            raise TrainingError("--taps are what a head reads; a draft model reads nothing of the target")

    def agree(self, asked: Asked) -> None:
        """Refuse options that were given again with another value than the run was started with."""
        for each in fields(asked):
            wanted = getattr(asked, each.name)
            has = getattr(self, each.name)
            if wanted is not None and each.name in _PATHS[1:] and wanted != SHIPPED:
                wanted = str(Path(wanted).expanduser().resolve())
            if wanted is not None and each.name == "taps":
                wanted = as_text(_tapped(wanted))
            if wanted is not None and wanted != has:
                raise TrainingError(
                    f"this run was started with {option(each.name)} {has}, not {wanted}; "
                    "leave the option out to go on as it began, or choose another --out"
                )
        if self.prompts is not None and self.data is None and checksum(Path(self.prompts)) != self.prompts_sha256:
            raise TrainingError(f"{self.prompts} has changed since this run began; put it back, or start anew")

    def dumps(self) -> str:
        return json.dumps({**asdict(self), "command": self.command}, indent=2) + "\n"

    @staticmethod
    def load(path: Path) -> TrainConfig:
        try:
            raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return TrainConfig(**{name: value for name, value in raw.items() if name != "command"})
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise TrainingError(f"{path} cannot be read as the settings of a run ({error}); start anew") from error


def other_shape(name: str, has: object, wanted: object) -> TrainingError:
    return TrainingError(
        f"what --start-from names has {option(name)} {has}, not {wanted}; leave {option(name)} out, "
        "or leave --start-from out to begin with the target's own layers"
    )


@dataclass(frozen=True, slots=True)
class Start:
    """What a run starts from, and what follows from it."""

    name: str
    """As `TrainConfig.start_from` has it."""
    sha256: str
    layers: int
    draft_vocab: int | None
    """None: it has all of the target's tokens."""

    def agree(self, asked: Asked) -> None:
        """Refuse to change its layers, or to take tokens away from it."""
        if asked.layers not in (None, self.layers):
            raise other_shape("layers", self.layers, asked.layers)
        if asked.draft_vocab is not None and asked.draft_vocab < (self.draft_vocab or 0):
            raise other_shape("draft_vocab", self.draft_vocab, asked.draft_vocab)

    def over(self, defaults: Defaults) -> Defaults:
        return replace(defaults, layers=self.layers, draft_vocab=self.draft_vocab or defaults.draft_vocab)


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What is used where nothing was asked for, by device and target."""

    model: str
    tokens: int
    epochs: int
    layers: int
    draft_vocab: int
    loss: str
    learning_rate: float
    batch_tokens: int
    seed: int = 0

    @staticmethod
    def of(model: str, device: str) -> Defaults:
        """For a target of the default model's size: a GPU ends within half an hour, two CPU cores within two hours (by
        rates measured over minutes: they write 900 tokens a second and learn from 225)."""
        gpu = device.startswith("cuda")
        return Defaults(
            model=model,
            tokens=30_000_000 if gpu else 400_000,
            epochs=4 if gpu else 3,
            layers=2,
            draft_vocab=24576,
            loss="kl+tv",
            learning_rate=2e-3 if gpu else 1e-3,
            batch_tokens=16_384 if gpu else 2048,
        )


def _tapped(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise TrainingError(f"--taps must be numbers of layers with commas between, as 2,15,27; got {text}") from None


def as_text(taps: tuple[int, ...]) -> str:
    return ",".join(map(str, taps))


def option(name: str) -> str:
    """A setting by the name it has on the command line."""
    return "--" + name.replace("_", "-")


def checksum(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise TrainingError(f"{path} cannot be read: {error.strerror or error}") from error
