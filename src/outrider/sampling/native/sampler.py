"""Choose tokens with the compiled sampler where there is one; it says when it cannot be sure."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_double, c_int32, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from outrider import compiled
from outrider.core.model import Runner
from outrider.core.request import ResolvedParams
from outrider.sampling.noise import row_key

KNOWN = frozenset({"temperature", "top_k", "top_p", "min_p"})
"""Features it computes, of logits that are processed (`ResolvedParams.features`)."""

_COOLEST, _HOTTEST = 1e-30, 1e30
"""Temperatures whose scores the sampler's fp32 filter can hold."""

_SIZES = {torch.float32: 4, torch.float64: 8}


class _Ask(Structure):
    """Field by field as in sampler.h."""

    _fields_ = [
        ("logits", c_void_p),
        ("count", c_int32),
        ("wide", c_int32),
        ("low", c_uint32),
        ("high", c_uint32),
        ("temperature", c_double),
        ("top_p", c_double),
        ("least", c_double),
        ("top_k", c_int32),
        ("token", c_int32),
    ]


@cache
def library() -> ctypes.CDLL | None:
    """The compiled sampler, or None where it was not built (no C compiler at install time)."""
    sampler = compiled.load(Path(__file__).parent, "_sampler", (_Ask,))
    if sampler is not None:
        sampler.outrider_sample.argtypes = [POINTER(_Ask), c_int32, c_void_p, c_int32]
        sampler.outrider_sample.restype = None
    return sampler


class HostRows(NamedTuple):
    """Logits [rows, V] in this machine's memory, as C sees them."""

    address: int
    pitch: int
    """Bytes from one row to the next."""
    vocab: int
    wide: bool
    """fp64, else fp32."""

    @staticmethod
    def of(logits: Tensor) -> HostRows | None:
        """None where the sampler cannot read them, or is not there."""
        size = _SIZES.get(logits.dtype)
        if size is None or not logits.is_cpu or library() is None:
            return None
        return HostRows(logits.data_ptr(), size * logits.stride(0), logits.shape[1], size == 8)


class Row(NamedTuple):
    """Processed logits to choose from, for generated position `position`."""

    rows: HostRows
    row: int
    params: ResolvedParams
    position: int


def sample(wanted: Sequence[Row], runner: Runner | None = None) -> list[int | None]:
    """The choice at each row; None where it is too close for the sampler to tell: ask the reference then."""
    asks = [_ask(*row) for row in wanted]
    answered = [ask for ask in asks if ask is not None]
    if not answered:
        return [None] * len(asks)
    sampler = library()
    assert sampler is not None, "HostRows.of() has looked"
    batch = (_Ask * len(answered))(*answered)  # type: ignore[misc]  # tuples will do
    sampler.outrider_sample(batch, len(batch), *(runner or (None, 1)))
    tokens = iter([ask.token for ask in batch])
    return [None if ask is None or (token := next(tokens)) < 0 else token for ask in asks]


def _ask(rows: HostRows, row: int, params: ResolvedParams, position: int) -> tuple[float, ...] | None:
    """The fields of an `_Ask` but the last, which is the answer."""
    low = high = 0
    if params.temperature != 0:
        # With both, top-p is a share of what top-k leaves, which only the reference works out.
        both = params.top_k > 0 and params.top_p < 1
        if both or not _COOLEST <= params.temperature <= _HOTTEST:
            return None
        low, high = row_key(params.seed, params.choice, position)
    return (
        rows.address + row * rows.pitch,
        rows.vocab,
        rows.wide,
        low,
        high,
        params.temperature,
        params.top_p,
        math.log(params.min_p) if params.min_p > 0 else -math.inf,
        min(params.top_k, rows.vocab),  # 32 bits there
    )
