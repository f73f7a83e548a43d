"""What a cache in blocks holds on one GPU: requests of any length side by side, and what they share stored once.

    python benchmarks/gpu_memory.py [--shape 8b] [--long 100000] [--gpu-memory 0.9]
        [--out benchmarks/results/gpu_memory.json]

A model of a named shape with random weights and contexts of 131,072 tokens, a cache of what a part of the GPU leaves.
64 requests of 256 tokens beside a long one, which must say what each says alone; then 64 that begin with the same 2,000
tokens. Ends with 1 where a token differs, somebody was sent back, or anything is stored twice.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from outrider.bench.shapes import SHAPES, random_weights
from outrider.control.controller import FixedLength
from outrider.drafters.none import NoDrafter
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.text import TextStream
from outrider.models.cuda.cache import blocks_of
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.kernels.attention import BLOCK
from outrider.models.cuda.memory import CacheMemory
from outrider.provenance import provenance
from outrider.sampling.history import History
from outrider.sampling.params import SamplingParams

GPU, CONTEXT, MANY, PREFIX = torch.device("cuda"), 131_072, 64, 2000


def words(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(10, 40_000), k=count)


def request(number: int, prompt: list[int], new: int) -> Request:
    params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True).resolve({}, [], 49_152)
    stream = TextStream(lambda token: b"x", (), False)
    return Request(
        id=number,
        tokens=list(prompt),
        prompt_length=len(prompt),
        params=params,
        limit=new,
        stream=stream,
        history=History(prompt),
    )


def run(engine: Engine, requests: Sequence[Request]) -> int:
    """Until all have ended; returns how many decoded at the same time."""
    for one in requests:
        engine.add(one)
    most = 0
    while not engine.idle:
        engine.step()
        most = max(most, sum(not s.num_uncomputed_tokens for s in engine.scheduler.running))
    return most


def beside(engine: Engine, long: int) -> dict[str, Any]:
    """Short ones beside a long one; the long one and some short ones again, alone."""
    prompts = [words(0, long), *(words(i, 256) for i in range(1, MANY + 1))]
    requests = [request(i, prompt, 400 if i else 32) for i, prompt in enumerate(prompts)]
    began = perf_counter()
    together = run(engine, requests)
    seconds = perf_counter() - began
    again = [request(100 + i, prompts[i], 32) for i in (0, 1, MANY)]
    for one in again:
        one.cache_salt = "alone"
        run(engine, [one])
    same = [one.tokens == requests[i].tokens[: len(one.tokens)] for one, i in zip(again, (0, 1, MANY), strict=True)]
    return {"together": together, "equal": all(same), "preempted": engine.stats.preemptions, "seconds": seconds}


def shared(engine: Engine, model: CudaDecoder) -> dict[str, Any]:
    """Requests of one caller that begin alike."""
    prefix = words(7, PREFIX)
    requests = [request(200 + i, [*prefix, *words(i, 16)], 64) for i in range(MANY)]
    for one in requests:
        one.cache_salt = "shared"
        engine.add(one)
    while not all(one.generated for one in requests):
        engine.step()
    held = [list(model.blocks(one.slot)) for one in requests if not one.ended]
    whole = PREFIX // BLOCK
    once = len({tuple(blocks[:whole]) for blocks in held}) == 1
    rest = [block for blocks in held for block in blocks[whole:]]
    while not engine.idle:
        engine.step()
    return {
        "running": len(held),
        "prefix_blocks": whole,
        "stored_once": once and len(rest) == len(set(rest)),
        "blocks": len({block for blocks in held for block in blocks}),
        "blocks_if_not_shared": sum(map(len, held)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--long", type=int, default=100_000)
    parser.add_argument("--gpu-memory", type=float, default=0.9)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    shape = replace(SHAPES[options.shape], max_context=CONTEXT)
    memory = CacheMemory.on(GPU, options.gpu_memory, None)
    weights = random_weights(shape, GPU, torch.bfloat16, seed=0)
    model = CudaDecoder.load(
        shape, weights, torch.bfloat16, GPU, max_batch=MANY + 1, max_context=CONTEXT, memory=memory
    )
    engine = Engine(model, NoDrafter(), FixedLength(0))
    size = model.block_bytes / 2**30
    one, other = beside(engine, options.long), shared(engine, model)
    found: dict[str, Any] = {
        "gpu_memory": options.gpu_memory,
        "blocks": model.cache_tokens // BLOCK,
        "cache_gib": model.cache_tokens // BLOCK * size,
        "reserved_per_slot_gib": (MANY + 1) * blocks_of(model.max_context) * size,
        "max_context": model.max_context,
        "beside": one,
        "shared": other,
        "in_use_gib": torch.cuda.memory_allocated() / 2**30,
    }
    print(json.dumps(found, indent=1))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"provenance": provenance(), **found}, indent=1))
    good = one["equal"] and one["together"] == MANY + 1 and not one["preempted"] and other["stored_once"]
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
