"""Choose tokens with the compiled sampler where there is one; it says when it cannot be sure."""

from __future__ import annotations

import ctypes
import math
from ctypes import POINTER, Structure, byref, c_double, c_int32, c_uint32, c_void_p
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.sampling.noise import row_key
from outrider.types import ResolvedParams

_COOLEST, _HOTTEST = 1e-30, 1e30
"""Temperatures whose scores the sampler's fp32 filter can hold."""


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
    ]


@cache
def library() -> ctypes.CDLL | None:
    """The compiled sampler, or None where it was not built (no C compiler at install time)."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_sampler{suffix}")
        if path.exists():
            sampler = ctypes.CDLL(str(path))
            sampler.outrider_sample.argtypes = [POINTER(_Ask)]
            sampler.outrider_sample.restype = c_int32
            return sampler
    return None


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
        if logits.device.type != "cpu" or logits.dtype not in (torch.float32, torch.float64) or library() is None:
            return None
        size = logits.element_size()
        return HostRows(logits.data_ptr(), size * logits.stride(0), logits.shape[1], size == 8)


def sample(rows: HostRows, row: int, params: ResolvedParams, position: int) -> int | None:
    """The choice at generated position `position` from one row of processed logits.

    None where the decision is too close for the sampler: ask the reference then.
    """
    sampler = library()
    assert sampler is not None, "HostRows.of() has looked"
    low = high = 0
    if params.temperature != 0:
        # With both, top-p is a share of what top-k leaves, which only the reference works out.
        both = params.top_k > 0 and params.top_p < 1
        if both or not _COOLEST <= params.temperature <= _HOTTEST:
            return None
        low, high = row_key(params.seed, params.choice, position)
    ask = _Ask(
        rows.address + row * rows.pitch,
        rows.vocab,
        rows.wide,
        low,
        high,
        params.temperature,
        params.top_p,
        math.log(params.min_p) if params.min_p > 0 else -math.inf,
        params.top_k,
    )
    token: int = sampler.outrider_sample(byref(ask))
    return token if token >= 0 else None
