"""Prompts on one GPU, 8B shape with random weights: the bits of wide passes beside those of narrow ones, time to first
token, decoding at long contexts, and how long others wait while a long prompt arrives.

    python benchmarks/gpu_wide.py [--quick | --prompts 8192,32000] [--out benchmarks/results/gpu_wide.json]

A pass of at most 64 rows runs the kernels for few rows, so a prompt given in pieces of 64 is what a whole one must
equal: every key and value of every layer, the logits, and the tokens that follow. Exits with 1 where they differ.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from itertools import count
from pathlib import Path
from time import perf_counter

import torch

from outrider.bench.shapes import SHAPES, random_weights
from outrider.control.controller import FixedLength
from outrider.core.model import Rows
from outrider.drafters.none import NoDrafter
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.text import TextStream
from outrider.models.cuda.compiling import compile_kernels
from outrider.models.cuda.decoder import CudaDecoder
from outrider.provenance import provenance
from outrider.sampling.history import History
from outrider.sampling.params import SamplingParams

GPU = torch.device("cuda")
PIECE = 64
SEEDS, NUMBERS = count(), count()

Found = dict[str, object]


def say(kept: list[Found], **found: object) -> None:
    kept.append(found)
    print(json.dumps(found), flush=True)


def prompt(length: int) -> list[int]:
    """Never a beginning that is cached."""
    return random.Random(next(SEEDS)).choices(range(10, 40_000), k=length)


def decoder(shape: str, max_batch: int, max_context: int) -> CudaDecoder:
    weights = random_weights(SHAPES[shape], GPU, torch.bfloat16, seed=0)
    return CudaDecoder.load(SHAPES[shape], weights, torch.bfloat16, GPU, max_batch=max_batch, max_context=max_context)


def prepared(kept: list[Found], model: CudaDecoder) -> Engine:
    engine = Engine(model, NoDrafter(), FixedLength(0))
    began = perf_counter()
    recordings = [recording for part in engine.prepares for recording in part.recordings()]
    for _ in compile_kernels(recordings):
        pass
    compiled = perf_counter()
    for recording in recordings:
        recording.record()
    torch.cuda.synchronize()
    seconds = {"compile": round(compiled - began, 2), "record": round(perf_counter() - compiled, 2)}
    memory = round(torch.cuda.memory_allocated() / 2**30, 1)
    say(kept, section="load", recordings=len(recordings), seconds=seconds, gib=memory)
    return engine


def fed(model: CudaDecoder, slot: int, tokens: list[int], piece: int) -> torch.Tensor:
    for start in range(0, len(tokens), piece):
        some = tokens[start : start + piece]
        last = start + piece >= len(tokens)
        logits = model.forward([Rows.chain(slot, some, logits=[len(some) - 1] if last else [])])
        model.commit(slot, range(len(some)))
    return logits


def following(model: CudaDecoder, slot: int, logits: torch.Tensor, tokens: int) -> list[int]:
    said = [int(logits[-1].argmax())]
    while len(said) < tokens:
        said.append(int(model.forward([Rows.chain(slot, said[-1:])])[-1].argmax()))
        model.commit(slot, range(1))
    return said


def held(model: CudaDecoder, slot: int, length: int) -> torch.Tensor:
    """What the cache has of a slot's first tokens: [2, layers, kv_heads, length, head_dim]."""
    blocks = model.network.cache.pool[:, :, list(model.blocks(slot))]
    return blocks.transpose(2, 3).flatten(3, 4)[:, :, :, :length].contiguous()


def equality(kept: list[Found], model: CudaDecoder, lengths: list[int]) -> None:
    for length in lengths:
        tokens = prompt(length)
        slots = model.open(), model.open()
        logits = [fed(model, slot, tokens, piece) for slot, piece in zip(slots, (length, PIECE), strict=True)]
        caches = [held(model, slot, length).view(torch.int16) for slot in slots]
        differing = sum(int((one != other).sum()) for one, other in zip(caches[0], caches[1], strict=True))
        texts = [following(model, slot, each, 24) for slot, each in zip(slots, logits, strict=True)]
        same = not differing and torch.equal(*logits) and texts[0] == texts[1]
        say(kept, section="equality", prompt=length, differing=differing, logits=torch.equal(*logits), equal=same)
        for slot in slots:
            model.close(slot)
    mixed(kept, model)


def mixed(kept: list[Found], model: CudaDecoder) -> None:
    """One pass of a token, two pieces of prompts and 16 rows deep in a third text, beside each of them alone."""
    parts = [(700, 1), (300, 450), (0, 333), (2000, 16)]
    texts = [prompt(before + rows) for before, rows in parts]
    found = []
    for together in (True, False):
        slots = [model.open() for _ in parts]
        for slot, text, (before, _) in zip(slots, texts, parts, strict=True):
            if before:
                fed(model, slot, text[:before], PIECE)
        batch = [Rows.chain(s, t[b:], logits=[n - 1]) for s, t, (b, n) in zip(slots, texts, parts, strict=True)]
        if together:
            logits = model.forward(batch)
            for slot, (_, rows) in zip(slots, parts, strict=True):
                model.commit(slot, range(rows))
        else:
            logits = torch.cat([fed(model, s, t[b:], PIECE) for s, t, (b, _) in zip(slots, texts, parts, strict=True)])
        cells = [held(model, slot, len(text)) for slot, text in zip(slots, texts, strict=True)]
        found.append([logits, *cells])
        for slot in slots:
            model.close(slot)
    say(kept, section="equality", prompt="mixed pass", equal=all(map(torch.equal, *found)))


def deep(kept: list[Found], model: CudaDecoder, length: int) -> None:
    """16 rows far behind a long prompt: together, one by one, and as a prompt's last."""
    tokens, found = prompt(length), []
    slot = model.open()
    fed(model, slot, tokens[:-16], length)
    for piece in (16, 1):
        found.append(fed(model, slot, tokens[-16:], piece)[-1])
        model.rollback(slot, length - 16)
    model.rollback(slot, length - 400)
    found.append(fed(model, slot, tokens[-400:], length)[-1])
    same = all(torch.equal(each, found[0]) for each in found)
    say(kept, section="equality", prompt=f"16 rows behind {length - 16}", equal=same)
    model.close(slot)


def requests(batch: int, length: int, new: int) -> list[Request]:
    made = []
    for i in range(batch):
        text = prompt(length)
        params = SamplingParams(temperature=0.0, seed=i, max_tokens=new, ignore_eos=True).resolve({}, [], 49_152)
        stream = TextStream(lambda token: b"x", (), False)
        made.append(
            Request(
                id=next(NUMBERS),
                tokens=text,
                prompt_length=length,
                params=params,
                limit=new,
                stream=stream,
                history=History(text),
            )
        )
    return made


def timed(engine: Engine, batch: int, length: int, new: int, skip: int) -> tuple[float, float]:
    """Seconds until all have their first token; tokens a second beyond the first `skip`."""
    running = requests(batch, length, new)
    began = perf_counter()
    for request in running:
        engine.add(request)
    first, since, before = 0.0, 0.0, 0
    while not all(s.ended for s in running):
        engine.step()
        least = min(s.generated for s in running)
        if not first and least:
            first = perf_counter() - began
        if not since and least >= skip:
            since, before = perf_counter(), sum(s.generated for s in running)
    return first, (sum(s.generated for s in running) - before) / (perf_counter() - since)


def gaps(engine: Engine, others: int, length: int) -> Found:
    """Of `others` that decode: the longest waits for their next token while a prompt of `length` arrives."""
    running = requests(others, 256, 1000)
    for request in running:
        engine.add(request)
    while min(s.generated for s in running) < 32:
        engine.step()
    arriving = requests(1, length, 1)[0]
    engine.add(arriving)
    began = last = perf_counter()
    waits = []
    while not arriving.ended:
        done = [s.generated for s in running]
        engine.step()
        if all(s.generated > n for s, n in zip(running, done, strict=True)):
            waits.append(perf_counter() - last)
            last = perf_counter()
    for request in running:
        engine.remove(request)
    waits.sort()
    worst = {"p50": waits[len(waits) // 2], "p99": waits[int(len(waits) * 0.99)], "max": waits[-1]}
    return {"first_token_s": round(last - began, 2), "ms": {k: round(1000 * v, 1) for k, v in worst.items()}}


def first_tokens(kept: list[Found], lengths: list[int]) -> None:
    engine = prepared(kept, decoder("8b", 2, max(lengths) + 512))
    for length in lengths:
        timed(engine, 1, length, 4, 1)
        firsts = sorted(round(timed(engine, 1, length, 4, 1)[0], 4) for _ in range(3))
        say(kept, section="prompt", tokens=length, first_token_s=firsts[1], all=firsts)


def everything(kept: list[Found], quick: bool) -> None:
    """`quick`: without what is long."""
    small = decoder("135m", 4, 4096)
    equality(kept, small, [129, 1000, 3000])
    del small
    lengths = [512, 2048, 8192] if quick else [512, 2048, 8192, 32_000]
    model = decoder("8b", 17, 33_000)
    engine = prepared(kept, model)
    equality(kept, model, [200, 777, 5000])
    for length in lengths:
        timed(engine, 1, length, 4, 1)
        first, rate = timed(engine, 1, length, 160, 32)
        say(kept, section="prompt", tokens=length, first_token_s=round(first, 4), decode=round(rate, 1))
    if not quick:
        deep(kept, model, 32_000)
        say(kept, section="gaps", others=16, prompt=32_000, **gaps(engine, 16, 32_000))
        del model, engine
        torch.cuda.empty_cache()
        engine = prepared(kept, decoder("8b", 64, 640))
        timed(engine, 64, 256, 8, 1)
        for _ in range(2):
            first, rate = timed(engine, 64, 256, 160, 32)
            say(kept, section="64 prompts of 256", first_tokens_s=round(first, 4), decode=round(rate, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="bits and first tokens only, up to 8,192 tokens")
    parser.add_argument("--prompts", help="first tokens alone, of prompts so long, three times each")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kept: list[Found] = []
    if options.prompts:
        first_tokens(kept, [int(length) for length in options.prompts.split(",")])
    else:
        everything(kept, options.quick)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"provenance": provenance(), "found": kept}, indent=1))
    sys.exit(0 if all(found.get("equal", True) for found in kept) else 1)


if __name__ == "__main__":
    main()
