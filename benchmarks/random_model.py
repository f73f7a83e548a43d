"""Writes a model folder of a named shape with random weights, which any engine loads as it does a real one.

    python benchmarks/random_model.py FOLDER [--shape 8b] [--tokenizer smollm2-135m] [--context 40960]

For speed alone: what it says is noise. The tokenizer is that of another model (or a folder that has one), whose
vocabulary must not be larger.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from outrider.bench.shapes import SHAPES, random_weights
from outrider.models.architecture import Architecture
from outrider.models.checkpoints.checkpoint import open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress

SHARD = 4 * 2**30
"""Bytes of a file, about."""
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


def config(a: Architecture, context: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "vocab_size": a.vocab_size,
        "hidden_size": a.hidden,
        "intermediate_size": a.mlp,
        "num_hidden_layers": len(a.layers),
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "rms_norm_eps": a.norm_eps,
        "rope_theta": a.ropes[0].theta,
        "max_position_embeddings": context,
        "tie_word_embeddings": a.tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--tokenizer", default="smollm2-135m", metavar="MODEL")
    parser.add_argument("--context", type=int, default=40960)
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    shape = SHAPES[options.shape]
    given = Path(options.tokenizer)
    source = given if given.is_dir() else Path(open_checkpoint(options.tokenizer, SilentProgress()).path)
    for name in TOKENIZER:
        if (source / name).exists():
            shutil.copy(source / name, options.folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    places: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    count = 0

    def write() -> None:
        nonlocal count
        count += 1
        file = f"model-{count:05}.safetensors"
        save_file(shard, options.folder / file, metadata={"format": "pt"})
        places.update(dict.fromkeys(shard, file))
        shard.clear()

    for name, weight in random_weights(shape, device, torch.bfloat16, seed=0):
        shard[name] = weight.cpu().contiguous()
        if sum(each.nbytes for each in shard.values()) > SHARD:
            write()
    write()
    index = {"metadata": {}, "weight_map": places}
    (options.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (options.folder / "config.json").write_text(json.dumps(config(shape, options.context), indent=1))


if __name__ == "__main__":
    main()
