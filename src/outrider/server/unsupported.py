"""Fields that are known elsewhere and not here.

One that would change the answer is refused: an answer that silently lacks what was asked for is worse than none.
All others are ignored and logged by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from outrider.server.errors import ApiError

_HARMLESS: Mapping[str, tuple[Any, ...]] = {
    # OpenAI's; with the values that ask for nothing
    "audio": (),
    "best_of": (1,),
    "conversation": (),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "suffix": ("",),
    "web_search_options": (),
    # of other servers
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "beam_width": (1,),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "grammar": ("",),
    "guided_grammar": (),
    "length_penalty": (1, 1.0),
    "mirostat": (0,),
    "truncate_prompt_tokens": (),
    "typical_p": (1, 1.0),
    "use_beam_search": (False,),
}
"""Fields that would change the answer, each with the values that leave it alone. null always does."""

_MESSAGE = re.compile(r"messages\[\d+\]")
_IN_MESSAGES: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": (),
}

NAMES = frozenset({*_HARMLESS, *_IN_MESSAGES})
"""Every name that may be refused."""


def ignored(request: BaseModel) -> list[str]:
    """Names of the fields that are left unread; `ApiError` names one that may not be."""
    names: list[str] = []
    for path, extra in _extras(request, ""):
        refused = _HARMLESS if not path else _IN_MESSAGES if _MESSAGE.fullmatch(path) else {}
        for name, value in extra.items():
            full = _joined(path, name)
            if name in refused and value is not None and not any(_same(value, known) for known in refused[name]):
                message = f"{full} is not supported by this server; leave it out"
                raise ApiError(400, message, param=full, reason="not supported")
            names.append(full)
    return names


def _extras(value: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Unknown fields of a request and of all below it, with where they stand."""
    if isinstance(value, BaseModel):
        if value.model_extra:
            yield path, value.model_extra
        for name in type(value).model_fields:
            yield from _extras(getattr(value, name), _joined(path, name))
    elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
        for i, item in enumerate(value):
            yield from _extras(item, f"{path}[{i}]")


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _same(value: Any, known: Any) -> bool:
    return type(value) is type(known) and bool(value == known)
