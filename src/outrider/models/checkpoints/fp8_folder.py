"""What a folder published for vLLM or transformers says about its weights of 8 bits (`quantization_config`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def in_fp8(config: Mapping[str, Any]) -> bool:
    """Whether matrices are e4m3 with scales that we apply (`unreadable` is None then)."""
    return bool(_scheme(config)) and unreadable(config) is None


def unreadable(config: Mapping[str, Any]) -> str | None:
    """Why its weights cannot be read, in words; None where they can."""
    scheme = _scheme(config)
    match scheme.get("quant_method"):
        case None:
            return None if not scheme else "in a way it does not name"
        case "compressed-tensors":
            against = _of_groups(scheme)
        case "fp8":
            against = _of_fp8(scheme)
        case _:
            against = ""
    return None if against is None else f"with {scheme['quant_method']}" + (f", {against}" if against else "")


def _scheme(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("quantization_config") or config.get("compression_config") or {}


def _of_fp8(scheme: Mapping[str, Any]) -> str | None:
    if scheme.get("weight_block_size"):
        return "with a scale per block of weights"
    if scheme.get("activation_scheme", "dynamic") != "dynamic":
        return _ONE_FOR_ALL
    return None


def _of_groups(scheme: Mapping[str, Any]) -> str | None:
    if scheme.get("kv_cache_scheme"):
        return "with a cache of 8 bits"
    groups = scheme.get("config_groups") or {}
    for group in groups.values():
        weights, inputs = group.get("weights") or {}, group.get("input_activations")
        if (weights.get("type"), weights.get("num_bits")) != ("float", 8):
            return f"as {weights.get('type')} of {weights.get('num_bits')} bits"
        if weights.get("strategy") not in ("channel", "tensor"):
            return f"with a scale per {weights.get('strategy')} of weights"
        if inputs and (inputs.get("strategy") != "token" or not inputs.get("dynamic")):
            return _ONE_FOR_ALL
    return None if groups else ""


_ONE_FOR_ALL = "with one scale for all activations"
"""Rounded so, a row would depend on those beside it, or on numbers that were fixed for others. Scales per row need not
be applied: activations are not rounded."""
