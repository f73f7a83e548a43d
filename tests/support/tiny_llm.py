"""A whole LLM over a tiny random model, for tests of the API: made in a moment, exact to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tiny_gguf import bpe_metadata, write_hf_model

from outrider import LLM

VOCAB = 300


def tiny_gguf(folder: Path, template: str | None = None, context: int = 128) -> Path:
    """A Llama of two layers whose logits are spread out enough to sample from; `template`: to chat with."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=context,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    path = folder / "tiny.gguf"
    metadata = bpe_metadata() | ({"tokenizer.chat_template": template} if template else {})
    write_hf_model(path, model, metadata)
    return path


def tiny_llm(folder: Path, *, template: str | None = None, **options: Any) -> LLM:
    return LLM(str(tiny_gguf(folder, template)), **{"drafter": "suffix", "draft_length": 4, "max_batch": 3, **options})
