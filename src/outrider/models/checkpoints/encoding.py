"""A text's token ids, without other threads having to wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_LONG = 16_384
"""Characters; encoding so many takes some 20 ms."""


def encoded(backend: Backend, text: str, add_special_tokens: bool) -> list[int]:
    """The ids. `tokenizers` lets other threads run only while it encodes a batch, so a long text is a batch of one. A
    short one is not: after a batch it warns whenever the process forks."""
    if len(text) < _LONG:
        ids: list[int] = backend.encode(text, add_special_tokens=add_special_tokens).ids
    else:
        ids = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
    return ids
