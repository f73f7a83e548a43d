"""Find the compiled library, and the C structures it shares with Python (field by field as in decoder.h)."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, c_double, c_float, c_int32, c_int64, c_uint32, c_void_p
from functools import cache
from pathlib import Path

from outrider import compiled
from outrider.errors import InvalidRequest, shown


class Shape(Structure):
    _fields_ = [
        *[
            (name, c_int32)
            for name in (
                "layers",
                "hidden",
                "heads",
                "kv_heads",
                "head_dim",
                "capacity",
                "activation",
                "bf16",
                "integers",
                "threads",
                "kernels",
            )
        ],
        ("norm_eps", c_float),
        ("attention_scale", c_float),
        ("embed_scale", c_float),
        ("qk_norm_wide", c_int32),
        *[(name, c_float) for name in ("residual_scale", "logit_scale", "logit_cap", "attention_cap")],
    ]


class Screen(Structure):
    _fields_ = [
        *[(name, c_void_p) for name in ("codes", "scales", "levels", "stretch", "mean", "largest")],
        ("columns", c_int32),
    ]


class Strip(Structure):
    _fields_ = [("data", c_void_p), *[(name, c_int32) for name in ("kind", "panels", "first", "step")]]


class Matrix(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("columns", c_int32),
        ("depth", c_int32),
        ("inputs", c_int32),
        ("screen", POINTER(Screen)),
        ("strips", POINTER(Strip)),
        ("strip_count", c_int32),
    ]


class Expert(Structure):
    _fields_ = [("gate_up", Matrix), ("down", Matrix)]


class Layer(Structure):
    _fields_ = [
        *[(name, Matrix) for name in ("qkv", "o", "gate_up", "down")],
        *[
            (name, c_void_p)
            for name in (
                "attention_norm",
                "mlp_norm",
                "attention_norm_bias",
                "mlp_norm_bias",
                "q_norm",
                "k_norm",
                "attention_out_norm",
                "mlp_out_norm",
                "cosines",
                "sines",
                "keys",
                "values",
            )
        ],
        ("window", c_int32),
        ("router", Matrix),
        ("experts", POINTER(Expert)),
    ]


class Routing(Structure):
    _fields_ = [
        *[(name, c_int32) for name in ("count", "used", "normalised")],
        *[(name, c_void_p) for name in ("scores", "chosen", "shares", "outputs", "gathered")],
    ]


class Model(Structure):
    _fields_ = [
        ("shape", Shape),
        ("layers", POINTER(Layer)),
        ("fusion", c_void_p),
        ("routing", POINTER(Routing)),
        ("embedding", c_void_p),
        ("embedding_scales", c_void_p),
        ("stored_embedding", c_int32),
        ("norm", c_void_p),
        ("norm_bias", c_void_p),
        ("head", Matrix),
        *[
            (name, c_void_p)
            for name in ("residual", "normed", "qkv", "attended", "update", "gated", "scores", "scratch")
        ],
        ("scores_size", c_int64),
        ("scratch_size", c_int64),
        ("taps", c_void_p),
        ("tap_count", c_int32),
    ]


class Fusion(Structure):
    _fields_ = [
        ("target", POINTER(Model)),
        ("fc", Matrix),
        ("state_norm", c_void_p),
        ("features", c_void_p),
        ("embedded", c_void_p),
        ("normed_residual", c_int32),
    ]


MOST_RANKED = 16


class Ranked(Structure):
    _fields_ = [("score", c_float), ("x", c_float), ("column", c_int32)]


class Partial(Structure):
    _fields_ = [
        ("largest", c_float),
        ("total", c_float),
        ("likely", Ranked * MOST_RANKED),
        ("drawn", Ranked * MOST_RANKED),
    ]


class Noise(Structure):
    _fields_ = [("inverse_temperature", c_float), ("random", c_int32), ("low", c_uint32), ("high", c_uint32)]


class Ranking(Structure):
    _fields_ = [
        ("count", c_int32),
        ("columns", c_int32),
        *[(name, c_void_p) for name in ("ids", "noise", "partials", "tokens", "shares")],
    ]


class Pass(Structure):
    _fields_ = [
        ("rows", c_int32),
        ("wanted", c_int32),
        *[(name, c_void_p) for name in ("tokens", "slots", "bases", "starts", "paths", "wanted_rows", "logits")],
        *[(name, c_void_p) for name in ("tapped", "features", "states", "ranking")],
    ]


class Wanted(Structure):
    _fields_ = [
        *[(name, c_double) for name in ("floor", "expand_node", "expand_level")],
        *[(name, c_int32) for name in ("nodes", "depth", "branching", "width")],
    ]


class Node(Structure):
    _fields_ = [("confidence", c_double), *[(name, c_int32) for name in ("token", "parent", "row", "place")]]


class Drafts(Structure):
    _fields_ = [
        ("first", POINTER(Pass)),
        *[(name, c_void_p) for name in ("wanted", "noise", "sizes", "tokens", "parents", "confidence")],
        *[(name, c_void_p) for name in ("looked_at", "paths", "states")],
    ]


class Product(Structure):
    _fields_ = [*[(name, c_void_p) for name in ("matrix", "x", "y")], ("rows", c_int32)]


ALONE_ROWS = 8

KERNELS = ("base", "avx2", "avxvnni", "avx512", "vnni", "amx", "dotprod", "i8mm", "bf16")
"""Instruction sets a pass is compiled for, the better ones of a kind of CPU later; the index is what C calls it. `base`
is what every CPU has: on aarch64 that is NEON."""
BF16_PRODUCTS = ("amx", "bf16")
"""Those that multiply bf16 numbers with bf16 ones (`bf16_products` of gemm.h)."""
FORCED = "OUTRIDER_KERNELS"
"""The variable that names the one to use."""


_HERE = Path(__file__).parent
SHARED = (
    *(Shape, Screen, Strip, Matrix, Expert, Layer, Routing, Model, Fusion, Ranked, Partial, Noise, Ranking, Pass),
    *(Wanted, Node, Drafts, Product),
)


def built() -> int:
    """When the kernels were, in nanoseconds: others may cost otherwise. 0: they are not."""
    path = compiled.find(_HERE, "_kernels")
    return path.stat().st_mtime_ns if path else 0


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None where they were not built (no C compiler at install time)."""
    kernels = compiled.load(_HERE, "_kernels", SHARED)
    if kernels is None:
        return None
    kernels.outrider_forward.argtypes = [POINTER(Model), POINTER(Pass)]
    kernels.outrider_forward.restype = None
    kernels.outrider_draft.argtypes = [POINTER(Model), POINTER(Drafts)]
    kernels.outrider_draft.restype = None
    kernels.outrider_product.argtypes = [POINTER(Model), POINTER(Product)]
    kernels.outrider_product.restype = None
    kernels.outrider_move.argtypes = [POINTER(Model), c_int32, c_int32, c_void_p, c_void_p]
    kernels.outrider_move.restype = None
    kernels.outrider_panel_bytes.argtypes = [c_int32, c_int32]
    kernels.outrider_panel_bytes.restype = c_int64
    kernels.outrider_pack.argtypes = [c_void_p, c_int64, *[c_int32] * 5, c_void_p]
    kernels.outrider_pack.restype = None
    kernels.outrider_widen.argtypes = [c_void_p, c_int64, c_int32, c_int64, c_void_p]
    kernels.outrider_widen.restype = c_int32
    kernels.outrider_quantise.argtypes = [c_void_p, c_int64, c_int32, c_int32, c_void_p, c_void_p]
    kernels.outrider_quantise.restype = None
    kernels.outrider_requantise.argtypes = [c_void_p, c_int64, c_int32, c_int64, c_int32, c_int32, c_void_p, c_void_p]
    kernels.outrider_requantise.restype = None
    kernels.outrider_turn.argtypes = [c_void_p, c_int64, c_int32, c_void_p]
    kernels.outrider_turn.restype = None
    gathered = c_void_p, c_int64, c_int32, c_int64, c_int64, c_int32, c_int32, c_int32, c_int64, c_void_p, c_void_p
    kernels.outrider_gather.argtypes = gathered
    kernels.outrider_gather.restype = None
    kernels.outrider_unpack.argtypes = [c_void_p, c_int64, c_int64, c_int32, c_int32, *[c_void_p] * 4]
    kernels.outrider_unpack.restype = None
    kernels.outrider_has.argtypes = [c_int32]
    kernels.outrider_has.restype = c_int32
    return kernels


@cache
def kernels_here() -> tuple[str, ...]:
    """Those this CPU has, the best last; none where there is no library."""
    kernels = library()
    return tuple(name for i, name in enumerate(KERNELS) if kernels is not None and kernels.outrider_has(i))


def chosen_kernels(asked: str | None = None) -> str:
    """The one to use: as asked, else as the environment says, else the best."""
    here = kernels_here()
    name = asked or os.environ.get(FORCED) or here[-1]
    if name not in here:
        raise InvalidRequest(f"{FORCED}: this CPU has no {shown(name)}; it has {', '.join(here)}")
    return name
