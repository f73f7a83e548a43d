"""Arm names: what each stands for, and which arm it is held against. No torch here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.errors import InvalidRequest
from outrider.models.dtypes import short_name

OURS = "outrider"
PLAIN = "plain"
AUTO = "auto"
"""What everybody gets who chooses nothing: `LLM()` with its own drafter and its own draft length."""

PEERS: Mapping[str, tuple[str, str]] = {
    "transformers": ("transformers", PLAIN),
    "transformers-static": ("transformers", "static"),
    "transformers-lookup": ("transformers", "lookup"),
    "transformers-assisted": ("transformers", "assisted"),
    "llama.cpp": ("llama.cpp", PLAIN),
    "llama.cpp-lookup": ("llama.cpp", "lookup"),
    "openvino": ("openvino", PLAIN),
    "openvino-lookup": ("openvino", "lookup"),
    "vllm": ("vllm", PLAIN),
    "vllm-ngram": ("vllm", "ngram"),
    "endpoint": ("endpoint", PLAIN),
}
"""Arm name → (the program, what it does there). A program's plain arm bears the program's name."""

_TAKES_PATH = ("model", "head", "head+suffix", "transformers-assisted")
_LENGTH = re.compile(r"auto|\d+|tree\d+")
_DTYPE = re.compile(r"(?P<rest>.+)@(?P<dtype>[a-z]+\d*)")


@dataclass(frozen=True, slots=True)
class ArmName:
    """`NAME[:PATH][:LENGTH][@DTYPE]`, taken apart.

    `length`: auto, a number (a chain of so many), or treeN (a tree of N nodes).
    """

    text: str
    program: str
    method: str
    path: str = ""
    length: str = "auto"
    dtype: str | None = None
    """None: the run's own."""

    @property
    def is_ours(self) -> bool:
        return self.program == OURS

    @property
    def is_plain(self) -> bool:
        return self.method == PLAIN


def parse(text: str) -> ArmName:
    """Take a name apart; `InvalidRequest` says what is wrong with it."""
    dtype = None
    rest = text.strip()
    if found := _DTYPE.fullmatch(rest):
        rest, dtype = found["rest"], short_name(found["dtype"])
    name, *parts = rest.split(":")
    program, method = PEERS.get(name, (OURS, name))
    length = "auto"
    if program == OURS and parts and _LENGTH.fullmatch(parts[-1]):
        length = parts.pop()
    path = ":".join(parts)
    if not name:
        raise InvalidRequest(f"arms: {text!r} names no arm")
    if path and name not in _TAKES_PATH:
        raise InvalidRequest(f"arms: {text!r}: {path!r} is no draft length (a number, treeN or auto)")
    if name in ("model", "transformers-assisted") and not path:
        raise InvalidRequest(f"arms: {text!r} needs the draft model's path, as in {name}:PATH")
    if name == PLAIN and length != "auto":
        raise InvalidRequest(f"arms: {text!r}: plain decoding drafts nothing")
    if name == AUTO and length != "auto":
        raise InvalidRequest(f"arms: {text!r}: auto chooses its own length; name a drafter, as in suffix:{length}")
    return ArmName(text.strip(), program, method, path, length, dtype)


def parse_all(texts: Sequence[str]) -> list[ArmName]:
    """Comma-separated lists of names, one after the other; each arm once."""
    names = [parse(piece) for text in texts for piece in text.split(",") if piece.strip()]
    if not names:
        raise InvalidRequest("arms: give at least one, as in --arms plain,auto")
    twice = [name.text for i, name in enumerate(names) if name.text in [n.text for n in names[:i]]]
    if twice:
        raise InvalidRequest(f"arms: {twice[0]} is named twice")
    return names


def reference(name: str, among: Sequence[str]) -> str | None:
    """The arm that `name` is held against, if it is `among` those measured.

    What speculates (or differs otherwise) is held against plain decoding of the same program in the same number
    format; plain decoding of any other kind against our own plain.
    """
    arm = parse(name)
    arms = [parse(each) for each in among]
    if arm.is_plain:
        plain = [a for a in arms if a.is_ours and a.is_plain]
        same = [a for a in plain if a.dtype == arm.dtype]
        return (same or plain)[0].text if plain else None
    own = [a.text for a in arms if a.is_plain and a.program == arm.program and a.dtype == arm.dtype]
    return own[0] if own else None


def pairs(among: Sequence[str]) -> list[tuple[str, str]]:
    """Our own arms that speculate, each with the plain arm it is held against."""
    held = [(name, reference(name, among)) for name in among if parse(name).is_ours and not parse(name).is_plain]
    return [(name, plain) for name, plain in held if plain is not None]
