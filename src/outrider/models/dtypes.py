"""The names of number formats, in both spellings. No torch here, so that the command line can read it."""

from __future__ import annotations

from collections.abc import Mapping

from outrider.errors import InvalidRequest, shown

DTYPES = ("bf16", "fp16", "fp32", "int8", "fp8", "native")

LONG: Mapping[str, str] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
"""As PyTorch and Hugging Face's configs write them."""


def short_name(asked: object) -> str:
    """The short name of what was asked for: either spelling, or a `torch.dtype`; `auto` is left as it is."""
    name = str(asked).removeprefix("torch.")
    name = LONG.get(name, name)
    if name not in ("auto", *DTYPES):
        raise InvalidRequest(
            f"dtype must be auto, {', '.join(DTYPES)} (or {', '.join(LONG)}, or such a torch.dtype), got {shown(asked)}"
        )
    return name
