"""What callers of `LLM` hand over, in the forms they have it in, made into what the engine takes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import torch

from outrider.control.controller import Controller
from outrider.core.draft import Speculation
from outrider.core.drafter import Drafter
from outrider.errors import InvalidRequest, shown
from outrider.models.checkpoints.progress import Progress, SilentProgress
from outrider.sampling.params import SamplingParams

T = TypeVar("T")


def prompts(given: object) -> list[str | list[int]]:
    """One text; the token ids of one prompt; or several prompts, each of them either. Ids may be in an array."""
    given = _plain(given)
    if isinstance(given, str):
        return [given]
    items = [_plain(item) for item in _items("prompts", given, "a text, token ids, or a list of those")]
    ids = [_is_id(item) for item in items]
    if items and all(ids):
        return [cast("list[int]", items)]
    if any(ids):
        one = next(item for item, is_id in zip(items, ids, strict=True) if not is_id)
        raise InvalidRequest(
            f"prompts: {shown(one)} stands among token ids; give the ids of one prompt, or a list of whole prompts"
        )
    wanted = "text or a list of token ids"
    return [item if isinstance(item, str) else token_ids(f"prompts[{i}]", item, wanted) for i, item in enumerate(items)]


def token_ids(name: str, given: object, wanted: str = "a list of token ids") -> list[int]:
    """In a list, or an array of one dimension."""
    ids = _items(name, _plain(given), wanted)
    if all(type(token) is int for token in ids):  # mostly, and prompts are long
        return cast("list[int]", ids)
    ids = [_plain(token) for token in ids]
    for token in ids:
        if not _is_id(token):
            raise InvalidRequest(f"{name}: {shown(token)} is no token id; those are whole numbers")
    return cast("list[int]", ids)


def params(given: object, count: int) -> list[SamplingParams]:
    """One per prompt."""
    must = "SamplingParams, such as SamplingParams(top_k=5)"
    return _one_each(
        "params", given, SamplingParams, count, "SamplingParams, or a list of them", must, "SamplingParams"
    )


def speculations(given: object, count: int) -> list[Speculation]:
    """One per prompt."""
    wanted = "a Speculation(…), or a list of them"
    return _one_each("speculation", given, Speculation, count, wanted, wanted, "Speculations")


def _one_each(name: str, given: object, kind: type[T], count: int, wanted: str, must: str, several: str) -> list[T]:
    """Of what is given once for all prompts, in a list, or not at all. The last three: how errors call it."""
    if given is None or isinstance(given, kind):
        return [given or kind()] * count
    each = _items(name, given, wanted)
    for one in each:
        if not isinstance(one, kind):
            raise InvalidRequest(f"{name} must be {must}, not {shown(one)}")
    if len(each) != count:
        raise InvalidRequest(f"{name}: {count} prompts need as many {several}, got {len(each)}")
    return cast("list[T]", each)


def tools(given: object) -> list[Mapping[str, Any]]:
    """Functions that may be called; what is in them is for the template to write."""
    items = _items("tools", given, 'a list such as [{"type": "function", "function": {"name": …}}]')
    for i, tool in enumerate(items):
        if not isinstance(tool, Mapping):
            raise InvalidRequest(f'tools[{i}] must be like {{"type": "function", …}}, not {shown(tool)}')
    return cast("list[Mapping[str, Any]]", items)


def messages(given: object) -> list[Mapping[str, Any]]:
    """A conversation; what is in a message is for the template to judge."""
    example = '{"role": "user", "content": "Hello"}'
    items = _items("messages", given, f"a list such as [{example}]")
    for i, message in enumerate(items):
        if not isinstance(message, Mapping):
            raise InvalidRequest(f"messages[{i}] must be like {example}, not {shown(message)}")
    return cast("list[Mapping[str, Any]]", items)


def drafter(given: object) -> str | Drafter:
    """The name of one, or one of somebody's own."""
    if not isinstance(given, str | Drafter):
        raise InvalidRequest(
            f'drafter must be a name, such as "suffix", or an object of a subclass of Drafter, not {shown(given)}'
        )
    return given


def controller(given: object) -> Controller:
    if not _has(given, ("draft", "plan", "observe", "lost", "forget", "pays")):
        raise InvalidRequest(f"controller must be one, such as AutoLength() or FixedLength(4), not {shown(given)}")
    return cast("Controller", given)


def model_name(given: object) -> str:
    name = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"model must be a known name, a model folder, a GGUF file or a hub id, not {shown(given)}")
    return name


def draft_length(given: object) -> int | None:
    """None: auto."""
    if isinstance(given, str) and given == "auto":
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise InvalidRequest(f'draft_length must be "auto" or a whole number from 0 on, got {shown(given)}')
    return given


def progress(given: object) -> Progress:
    """None: a silent one."""
    if given is None:
        return SilentProgress()
    if not _has(given, ("task", "note")):
        raise InvalidRequest(f"progress must be a Progress (task, note), or None for a silent one, not {shown(given)}")
    return cast("Progress", given)


def names(name: str, given: object) -> Sequence[str]:
    items = _items(name, given, 'a list of drafters, or "available"')
    for item in items:
        if not isinstance(item, str):
            raise InvalidRequest(f"{name} must name drafters, as in {name}=['suffix'], not {shown(item)}")
    return cast("list[str]", items)


def _items(name: str, given: object, wanted: str) -> list[object]:
    """What a list, or anything like one, holds; not of text, bytes or what has no order."""
    unordered = isinstance(given, Mapping | set | frozenset)
    if isinstance(given, str | bytes | bytearray | memoryview) or unordered or not isinstance(given, Iterable):
        raise InvalidRequest(f"{name} must be {wanted}, not {shown(given)}")
    return list(given)


def _has(given: object, methods: Sequence[str]) -> bool:
    """Whether it is an object (not its class) with these methods."""
    return not isinstance(given, type) and all(callable(getattr(given, method, None)) for method in methods)


def _plain(value: object) -> object:
    """Numbers and lists of them instead of arrays."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic | torch.Tensor) else value


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
