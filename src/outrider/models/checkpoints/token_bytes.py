"""The bytes a token stands for.

Text is assembled from bytes, not from decoded tokens, because one character may span several tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outrider.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"  # ▁, which SentencePiece writes for a space


@dataclass(frozen=True, slots=True)
class ByteRule:
    """How a vocabulary writes bytes: for an ordinary token, for one that was added to it and is looked for in
    the plain text, and whether the decoder drops one leading space (SentencePiece puts one there)."""

    to_bytes: Callable[[str], bytes]
    added_to_bytes: Callable[[str], bytes]
    strips_space: bool


def byte_rule(backend: Backend) -> ByteRule:
    """Read the rule off the tokenizer's decoder."""
    if backend.decoder is None:
        raise ModelError("the tokenizer has no decoder, so its tokens cannot be turned into text.")
    decoder = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = decoder.get("decoders", [decoder])
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return ByteRule(_from_byte_level, str.encode, strips_space=False)
    metaspace = next((step for step in steps if step["type"] == "Metaspace"), None)
    if metaspace is not None:
        strips = metaspace.get("prepend_scheme") != "never"
        return ByteRule(_from_sentencepiece, _from_sentencepiece, strips)
    if "ByteFallback" in kinds or any(step.get("pattern") == {"String": _SPACE} for step in steps):
        strips = any(step["type"] == "Strip" and step["start"] > 0 for step in steps)
        return ByteRule(_from_sentencepiece, _from_sentencepiece, strips)
    raise ModelError(
        f"the tokenizer decodes with {' + '.join(sorted(kinds))}, which Outrider cannot follow; "
        "known are byte-level BPE and SentencePiece."
    )


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's: printable Latin-1 stands for itself, the other 68 bytes are written from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_ALPHABET = _byte_level_alphabet()


def _from_byte_level(token: str) -> bytes:
    try:
        return bytes([_ALPHABET[character] for character in token])
    except KeyError:  # not written in the alphabet: a token added as plain text
        return token.encode()


def _from_sentencepiece(token: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace(_SPACE, " ").encode()
