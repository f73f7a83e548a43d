"""Languages, shapes and parameters that the rejection rule is enumerated with."""

from __future__ import annotations

from typing import Any

from enumeration import Shape
from toy import Language, between, language, resolved

from outrider.core.request import ResolvedParams

TOLERANCE = 1e-9

PROMPT = (1, 0)
CHAIN = Shape(nodes=2, depth=2)
WIDE = Shape(nodes=3, depth=1, branching=3)
TREE = Shape(nodes=4, depth=2, branching=2)
SMALL_TREE = Shape(nodes=3, depth=2, branching=2)

PROCESSORS: dict[str, dict[str, Any]] = {
    "none": {},
    "temperature": {"temperature": 0.6},
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.3},
    "repetition": {"repetition_penalty": 1.7},
    "frequency": {"frequency_penalty": 1.3},
    "presence": {"presence_penalty": -1.1},
    "bias": {"logit_bias": {0: 1.5, 2: -2.0}},
    "min_tokens": {"min_tokens": 2, "eos": [2]},
    "everything": {
        "temperature": 1.4,
        "top_k": 3,
        "top_p": 0.95,
        "min_p": 0.02,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.4,
        "logit_bias": {1: -0.5},
        "min_tokens": 1,
        "eos": [0],
    },
}


def case(
    vocab: int, length: int, seed: int = 0, apart: float = 0.6, **options: Any
) -> tuple[ResolvedParams, Language, Language]:
    params = resolved(vocab, verify="rejection", max_tokens=length, **options)
    target = language(vocab, seed)
    return params, target, between(target, language(vocab, seed + 1000), apart)
