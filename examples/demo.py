"""`make demo`: an edit of a function, drafted ahead and in colour, then plainly, and what that made of the speed here.

The number format is the one that shows most on this machine: bf16 where it has bf16 arithmetic (a GPU, AMX), int8 on
other CPUs, where verifying a few tokens in one pass costs little only in integers. Both answers are written in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from outrider.cli.answer import Answerer
from outrider.cli.options import Settings
from outrider.cli.report import sameness
from outrider.cli.screen import note
from outrider.core.request import Completion
from outrider.models.native.library import chosen_kernels, library

PROMPT = Path(__file__).with_name("edit_function.txt")
_GAIN = 1.05


def dtype_here() -> Literal["auto", "int8"]:
    if torch.cuda.is_available() or library() is None or chosen_kernels() == "amx":
        return "auto"
    return "int8"


def verdict(done: Completion, plain: Completion, verify: str, why: str) -> str:
    ratio = done.tokens_per_second / plain.tokens_per_second if plain.tokens_per_second else 0.0
    if ratio >= _GAIN:
        return f"{ratio:.1f}x faster, {sameness(done, plain, verify)}"
    return (
        f"Drafting does not pay for this text on this machine, so Outrider leaves it: {plain.tokens_per_second:.1f} "
        f"tokens/s, {sameness(done, plain, verify)}. {why[:1].upper()}{why[1:]}."
    )


def main() -> None:
    dtype = dtype_here()
    if dtype == "int8":
        note("both answers are written in int8, which suits this CPU; `outrider models cost` says what passes cost")
    settings = Settings(dtype=dtype, max_tokens=128, temperature=0, compare=True)
    answerer = Answerer(settings, verdict)
    answerer.answer(answerer.encode([{"role": "user", "content": PROMPT.read_text(encoding="utf-8")}]))


if __name__ == "__main__":
    main()
