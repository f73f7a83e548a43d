"""How far one number format is from another: mean KL(bf16 || int8) over this project's own documentation.

python benchmarks/int8_quality.py [--positions 2240] [--model MODEL] [--exact bf16] [--rounded int8] [FILE …]
python benchmarks/int8_quality.py --exact fp32 --rounded native --model model.gguf
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from outrider.core.model import Rows
from outrider.models.checkpoints.checkpoint import open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.load import load_model, placement

WINDOW = 320
ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--positions", type=int, default=2240)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--exact", default="bf16")
    parser.add_argument("--rounded", default="int8")
    options = parser.parse_args()
    checkpoint = open_checkpoint(options.model, SilentProgress())
    files = options.files or sorted((ROOT / "docs").glob("*.md"))
    text = "\n".join(path.read_text(encoding="utf-8")[: 16 * options.positions // len(files)] for path in files)
    tokens = checkpoint.tokenizer.encode(text)[: options.positions]

    def model(dtype: str) -> Any:
        place = placement(device="cpu", dtype=dtype, bitwise=None, threads=None, max_batch=1, max_context=WINDOW)
        return load_model(checkpoint, place)

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
