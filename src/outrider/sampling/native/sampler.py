"""Choose tokens with the compiled sampler where there is one; it says when it cannot be sure."""

from __future__ import annotations

import ctypes
import math
from ctypes import POINTER, Structure, byref, c_double, c_int32, c_uint32, c_void_p
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from outrider.sampling.noise import Key, row_key
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


def sample(address: int, count: int, wide: bool, params: ResolvedParams, key: Key) -> int | None:
    """The choice among `count` processed logits at `address`, fp64 where `wide`, else fp32.

    None where the sampler is absent, or the decision too close for it: ask the reference then.
    """
    sampler = library()
    cold, both = params.temperature == 0, params.top_k > 0 and params.top_p < 1
    # With both, top-p is a share of what top-k leaves, which only the reference works out.
    if sampler is None or not cold and (both or not _COOLEST <= params.temperature <= _HOTTEST):
        return None
    low, high = (0, 0) if cold else row_key(key)
    least = math.log(params.min_p) if params.min_p > 0 else -math.inf
    ask = _Ask(address, count, wide, low, high, params.temperature, params.top_p, least, params.top_k)
    token: int = sampler.outrider_sample(byref(ask))
    return token if token >= 0 else None
