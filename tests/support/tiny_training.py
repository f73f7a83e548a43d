"""What `outrider train` is tested on: a tiny target, prompts for it, and runs that take seconds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from tiny_gguf import BPE_TOKENS, bpe_metadata, write_hf_model
from transformers import LlamaConfig, LlamaForCausalLM

from outrider.train.checkpoint import Checkpoints

QUICK = ("--device", "cpu", "--batch-tokens", "192", "--learning-rate", "0.006")
"""Small batches and large steps: little text is enough to learn from."""
SHORT = (*QUICK, "--epochs", "1", "--layers", "1")
"""Where it matters how a run goes and not what comes of it."""


def write_target(path: Path) -> None:
    """Taught in seconds to say a long round of tokens by heart: what comes next can be told, and nothing loops (what a
    random target says greedily is little else than loops, which are not kept)."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(BPE_TOKENS), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=128, initializer_range=0.15,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    order = torch.randperm(len(BPE_TOKENS) - 2) + 2  # without the tokens that begin and end a text
    following = torch.zeros(len(BPE_TOKENS), dtype=torch.long)
    following[order] = order.roll(-1)
    descent = torch.optim.AdamW(model.parameters(), 5e-3)
    for _ in range(120):
        tokens = torch.randint(2, len(BPE_TOKENS), (64, 16))
        for place in range(1, 16):
            known = torch.rand(64) < 0.8
            tokens[known, place] = following[tokens[known, place - 1]]
        loss = model(input_ids=tokens, labels=tokens).loss
        descent.zero_grad()
        loss.backward()
        descent.step()
    write_hf_model(path, model, bpe_metadata(), **{"rope.freq_base": 1e4})


def write_prompts(path: Path) -> None:
    rng = random.Random(0)
    words = ["the", "hell", "in", "tin", "he", "ill", "then", "a", "b", "c", "x"]
    lines = [json.dumps({"prompt": " ".join(rng.choices(words, k=rng.randint(2, 6)))}) for _ in range(600)]
    path.write_text("\n".join(lines) + "\n")


def events(out: Path, kind: str) -> list[dict[str, Any]]:
    """Of that kind, in a run's log."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


def step_of(out: Path) -> int:
    """Where a run's last checkpoint stands."""
    state = Checkpoints(out / "checkpoints").latest()
    return 0 if state is None else int(state["step"])
