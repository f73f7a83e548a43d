"""How far one number format is from another: mean KL(bf16 || int8) over this project's own documentation.

python benchmarks/int8_quality.py [--positions 2240] [--model MODEL] [--exact bf16] [--rounded int8] [FILE …]
python benchmarks/int8_quality.py --exact fp32 --rounded native --model model.gguf
python benchmarks/int8_quality.py --rounded fp8 [--head int8|fp8|exact]

fp8 is for GPUs: here its weights, rounded and widened again, run in fp32. `--head`: what the output layer is rounded
to; folders published in fp8 leave it exact.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from outrider.core.model import Rows
from outrider.models.checkpoints.checkpoint import Checkpoint, WeightSource, open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.load import load_model, placement
from outrider.models.precision import FP8, dequantised, quantise_channels

WINDOW = 320
ROOT = Path(__file__).resolve().parents[1]
HEADS = {"int8": torch.int8, "fp8": FP8.weights, "exact": None}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class InFp8:
    """Weights that were rounded to fp8, as numbers; the embedding, which is looked up, is not.

    Tied weights are taken apart: the head is the rounded embedding."""

    weights: WeightSource
    tied: bool
    head: torch.dtype | None
    """What the output layer is rounded to."""

    @property
    def parameters(self) -> int:
        return self.weights.parameters

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self.weights.tensors(torch.float32):
            if name == EMBEDDING and self.tied:
                yield HEAD, rounded(tensor, self.head).to(dtype)
            form = None if tensor.dim() == 1 or name == EMBEDDING else self.head if name == HEAD else FP8.weights
            yield name, rounded(tensor, form).to(dtype)

    def unread(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        return self.tensors(dtype)

    def stored(self) -> None:
        """Nothing here is."""

    def fp8(self) -> None:
        """Nor that: they are numbers again."""


def rounded(weight: torch.Tensor, form: torch.dtype | None) -> torch.Tensor:
    """What `weight` becomes, as numbers; None: itself."""
    if form is None:
        return weight
    values, scales = torch.empty(weight.shape, dtype=form), torch.empty(len(weight))
    quantise_channels(weight, values, scales)
    return dequantised(values, scales)


def in_fp8(checkpoint: Checkpoint, head: torch.dtype | None) -> Checkpoint:
    config = checkpoint.config | {"tie_word_embeddings": False}
    tied = bool(checkpoint.config.get("tie_word_embeddings"))
    return replace(checkpoint, config=config, weights=InFp8(checkpoint.weights, tied, head))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--positions", type=int, default=2240)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--exact", default="bf16")
    parser.add_argument("--rounded", default="int8")
    parser.add_argument("--head", choices=HEADS, default="int8")
    options = parser.parse_args()
    checkpoint = open_checkpoint(options.model, SilentProgress())
    files = options.files or sorted((ROOT / "docs").glob("*.md"))
    text = "\n".join(path.read_text(encoding="utf-8")[: 16 * options.positions // len(files)] for path in files)
    tokens = checkpoint.tokenizer.encode(text)[: options.positions]

    def model(name: str) -> Any:
        dtype = "fp32" if name == "fp8" else name
        place = placement(device="cpu", dtype=dtype, bitwise=None, threads=None, max_batch=1, max_context=WINDOW)
        return load_model(in_fp8(checkpoint, HEADS[options.head]) if name == "fp8" else checkpoint, place)

    models = [model(options.exact), model(options.rounded)]
    divergences, same = [], []
    for start in range(0, len(tokens) - WINDOW + 1, WINDOW):
        found = []
        for each in models:
            slot = each.open()
            found.append(each.forward([Rows.chain(slot, tokens[start : start + WINDOW])]).log_softmax(-1))
            each.close(slot)
        p, q = found
        divergences.append((p.exp() * (p - q)).sum(-1))
        same.append((p.argmax(-1) == q.argmax(-1)).float())
    kl = torch.cat(divergences)
    print(
        f"{len(kl)} positions, {models[1].kernels}: mean KL({options.exact} || {options.rounded}) {kl.mean():.4f}, "
        f"largest {kl.max():.3f}, same likeliest token in {torch.cat(same).mean():.1%}"
    )


if __name__ == "__main__":
    main()
