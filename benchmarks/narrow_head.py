"""Write the compact form of a head anew: matrices in few bits, rounded by what the head reads while the target answers.

    python benchmarks/narrow_head.py --head DIR --prompts FILE [--limit 64] --out DIR

`outrider train` does the same at the end of a run, with its held-out text. This is for a head whose run is gone, or
for other widths. Takes the first turns of evenly spread prompts (JSON lines with `prompt` or `turns`) that must not be
those the head is verified by.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch

from outrider import LLM, SamplingParams
from outrider.models.architecture import Architecture
from outrider.models.checkpoints.checkpoint import open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.load import read_head
from outrider.models.head.torch_head import as_module
from outrider.models.head.weights import target_ids
from outrider.models.weights import load_weights
from outrider.train.batch import Texts
from outrider.train.divergence import LOSSES
from outrider.train.head_student import HeadStudent, Unroll
from outrider.train.prompts import read_prompts
from outrider.train.quantize import narrowed
from outrider.train.settings import checksum
from outrider.train.teacher import Teacher

LONGEST = 1200


def answers(model: str, prompts: list[str]) -> Iterator[Texts]:
    llm = LLM(model, max_batch=8)
    asked = [llm.encode_chat([{"role": "user", "content": prompt}]) for prompt in prompts]
    asked = [ids for ids in asked if len(ids) <= LONGEST - 128]
    for ids, answer in zip(asked, llm.generate(asked, SamplingParams(temperature=0, max_tokens=128)), strict=True):
        tokens = torch.tensor([*ids, *answer.token_ids])[None]
        texts = Texts(tokens, [tokens.shape[1]], [len(ids)], [True])
        texts.prepare(torch.device("cpu"))
        yield texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--limit", type=int, default=64)
    given = parser.parse_args()
    prompts = [turns[0] for turns in read_prompts(given.prompts)]
    texts = list(answers(given.model, prompts[:: max(1, len(prompts) // given.limit)][: given.limit]))
    target = open_checkpoint(given.model, SilentProgress())
    architecture = Architecture.from_config(target.config)
    cpu = torch.device("cpu")
    weights = load_weights(architecture, target.tensors(torch.bfloat16), torch.bfloat16, cpu, lambda layer: layer)
    head = read_head(given.head, target.tokenizer).for_target(architecture)
    student = HeadStudent(
        as_module(head),
        target_ids(head.tensors["d2t"]),
        Teacher(architecture, weights, LONGEST),
        LOSSES["kl"],
        Unroll(),
        LONGEST,
    )
    grams = student.grams(texts)
    about = {**head.about, "narrowed": {"texts": len(texts), "prompts": checksum(given.prompts)}}
    tensors = {**student.module.state_dict(), "d2t": head.tensors["d2t"]}  # whole, whatever form the head was in
    HeadCheckpoint(head.config, tensors, about).write(given.out, narrowed(tensors, grams))
    size = (given.out / "model.safetensors").stat().st_size
    print(f"{given.out}: {size / 2**20:.2f} MiB, by {sum(text.lengths[0] for text in texts):,} tokens")


if __name__ == "__main__":
    main()
