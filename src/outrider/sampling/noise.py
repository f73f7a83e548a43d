"""Counter-based noise: every random number is a pure function of its key, so nothing is stored or replayed.

Two layers make the noise of the coupled rule:

* the row key, 64 bits of BLAKE2b over (stream, seed, choice, position), computed on the host from Python
  integers of any size, so it cannot depend on a device;
* per token, two rounds of a 32-bit integer mixer over (token, row key), in wrapping int32 arithmetic, which
is
  the same on every device. With x its last value, k = x + 2^31 is uniform on 0 .. 2^32-1.

u = (k + 1/2) / 2^32 is exact in fp64 and never 0 or 1; G = -log(-log u) is Gumbel noise in (-3.14, 22.88).

The rejection rule's draws are made alike, from keys of a stream of their own: one for each step, and a number for each
draw of it instead of a token (`uniform`). So whoever has the keys of the next steps can draw without the host.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_COUPLED, _REJECTION = "gumbel", "rejection"
"""The rules' streams of keys."""

# Odd multipliers: a Weyl step (golden ratio), then the two of the mixer, as signed 32-bit values.
STEP = 0x9E3779B9 - (1 << 32)
_MIX_A = 0x7FEB352D
_MIX_B = 0x846CA68B - (1 << 32)

_WORD = 0xFFFFFFFF
_RUN = 16


def hash64(stream: str, *numbers: int) -> int:
    """64 uniform bits keyed by a stream name and integers of any size or sign."""
    text = "/".join((stream, *map(str, numbers)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class Key(NamedTuple):
    """What a row of noise depends on."""

    seed: int
    choice: int
    position: int
    """Of the token to be chosen, among the generated ones."""


def row_key(seed: int, choice: int, position: int) -> tuple[int, int]:
    """The low and the high 32 bits of the key of a row of noise."""
    return _row_keys(seed, choice, position // _RUN)[position % _RUN]


@lru_cache(maxsize=512)
def _row_keys(seed: int, choice: int, run: int) -> list[tuple[int, int]]:
    """The keys of `_RUN` positions in a row. Requests ask for one after the other, between passes that leave the
    caches cold: hashing several at a time then costs a tenth."""
    positions = range(run * _RUN, (run + 1) * _RUN)
    keys = np.frombuffer(_digests(_COUPLED, seed, choice, positions), "<u4").reshape(-1, 2)
    return [(low, high) for low, high in keys.tolist()]


def _digests(stream: str, seed: int, choice: int, positions: range) -> bytes:
    """`hash64` of the stream, seed, choice and each position, as 8 bytes each; what they have in common is hashed
    once."""
    begun = hashlib.blake2b(f"{stream}/{seed}/{choice}/".encode(), digest_size=8)
    digests = []
    for text in map(_written, positions):
        one = begun.copy()
        one.update(text)
        digests.append(one.digest())
    return b"".join(digests)


@lru_cache(maxsize=1 << 16)
def _written(position: int) -> bytes:
    return str(position).encode()


def integers(keys: Sequence[Key], tokens: Tensor) -> Tensor:
    """The int32 values x (k = x + 2^31) of `tokens` [N] under each key: [keys, N]."""
    low, high = torch.split(words(keys).to(tokens.device), 1, dim=1)  # [keys, 1] each
    x = tokens.to(torch.int32).mul(STEP).bitwise_xor(low)  # [keys, N]
    return mix(mix(x).add_(high))


def words(keys: Sequence[Key]) -> Tensor:
    """The two words, low and high, that each row of noise is keyed by: [keys, 2] int32."""
    unsigned = torch.tensor([row_key(*key) for key in keys])
    return torch.where(unsigned >= 1 << 31, unsigned - (1 << 32), unsigned).to(torch.int32)


def words_of(seed: int, choice: int, positions: range) -> Tensor:
    """`words` of positions in a row, sooner."""
    return _as_words(_digests(_COUPLED, seed, choice, positions))


def step_words_of(seed: int, choice: int, steps: range) -> Tensor:
    """The words of `step_key` [steps, 2] int32."""
    return _as_words(_digests(_REJECTION, seed, choice, steps))


def _as_words(digests: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(digests, "<i4").reshape(-1, 2).astype(np.int32))


def step_key(seed: int, choice: int, step: int) -> tuple[int, int]:
    """The low and the high 32 bits that the rejection rule's draws of one step are keyed by."""
    key = hash64(_REJECTION, seed, choice, step)
    return key & _WORD, key >> 32


def uniform(key: tuple[int, int], number: int) -> float:
    """53 uniform bits in [0, 1), of the draw with this number: two words of noise, the first one's bits before the
    other's."""
    high, low = (_word(key, 2 * number + half) for half in range(2))
    return (high << 21 | low >> 11) * 2.0**-53


def _word(key: tuple[int, int], token: int) -> int:
    """As `integers` gives them, unsigned and of one key and token."""
    low, high = key
    return _mixed((_mixed((token * STEP & _WORD) ^ low) + high) & _WORD)


def _mixed(x: int) -> int:
    """`mix` of one unsigned word."""
    x = (x ^ x >> 16) * _MIX_A & _WORD
    x = (x ^ x >> 15) * _MIX_B & _WORD
    return x ^ x >> 16


def gumbel_at(keys: Sequence[Key], tokens: Tensor) -> Tensor:
    """Gumbel noise of `tokens` [N] under each key: [keys, N] fp64."""
    u = integers(keys, tokens).to(torch.float64).add_(2.0**31 + 0.5).mul_(2.0**-32)
    return u.log_().neg_().log_().neg_()


def gumbel_rows(keys: Sequence[Key], vocab: int, device: torch.device | str = "cpu") -> Tensor:
    """Gumbel noise of a whole vocabulary under each key: [keys, vocab] fp64."""
    return gumbel_at(keys, torch.arange(vocab, dtype=torch.int32, device=device))


def gumbel(seed: int, choice: int, position: int, vocab: int, device: torch.device | str = "cpu") -> Tensor:
    """Gumbel noise of a whole vocabulary at one generated position: [vocab] fp64."""
    return gumbel_rows([Key(seed, choice, position)], vocab, device)[0]


def rough_gumbel(key: Key, tokens: NDArray[np.uint32]) -> NDArray[np.float32]:
    """`gumbel_at` of one key to fp32's precision, for drafts: they gain by being near the target's noise, and by being
    cheap, not by equality."""
    low, high = row_key(*key)
    x = (tokens * np.uint32(STEP & 0xFFFFFFFF)) ^ np.uint32(low)
    for word in (high, None):
        x ^= x >> np.uint32(16)
        x *= np.uint32(_MIX_A)
        x ^= x >> np.uint32(15)
        x *= np.uint32(_MIX_B & 0xFFFFFFFF)
        x ^= x >> np.uint32(16)
        if word is not None:
            x += np.uint32(word)
    # The integer is signed: k = x + 2^31. In fp32 u may round up to 1, where the noise would be infinite.
    u = ((x ^ np.uint32(0x80000000)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    noise: NDArray[np.float32] = -np.log(-np.log(np.minimum(u, np.float32(1 - 2.0**-24))))
    return noise


def mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit words in which every input bit reaches every output bit; overwrites x.

    int32 >> is arithmetic, so the shifted-in sign bits are masked off; products wrap.
    """
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(_MIX_A)
    x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF)).mul_(_MIX_B)
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))
