"""How fast a target's text is written in bulk (`outrider.train.writer`), on the GPU or CPU at hand.

    python benchmarks/bulk_writing.py [--shape 135m | --model smollm2-135m] [--lanes 2048] [--seconds 20] [--profile]

Prompts of 20 to 500 random tokens, answers of up to 320, half greedy and half at temperature 1; a random-weight model
never stops early. Rates are over the time after a start of two rounds, in which kernels are compiled and the step is
recorded: `tokens_per_s` counts tokens read and written, `answer_tokens_per_s` those written.
`kernels_agree` compares greedy answers with those of plain PyTorch operations on the same device: how many of the first
tokens after a prompt are the same (rounding differs, so a few in a thousand may not be).
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from itertools import count
from time import perf_counter
from typing import Any

import torch

from outrider.bench.shapes import SHAPES, random_weights
from outrider.models.architecture import Architecture
from outrider.models.checkpoints.checkpoint import open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.weights import DecoderWeights, LayerWeights, load_weights
from outrider.train.jobs import Job
from outrider.train.operations import TorchOperations
from outrider.train.writer import Writer, fitting_lanes

PROMPT, NEW = (20, 500), 320


def load(
    options: argparse.Namespace, device: torch.device, dtype: torch.dtype
) -> tuple[Architecture, DecoderWeights[LayerWeights], tuple[int, ...]]:
    """Architecture, weights, and the ids that end an answer."""
    eos: tuple[int, ...] = ()
    if options.model is None:
        architecture = SHAPES[options.shape]
        tensors = random_weights(architecture, device, dtype, seed=0)
    else:
        checkpoint = open_checkpoint(options.model, SilentProgress())
        architecture = Architecture.from_config(checkpoint.config)
        tensors, eos = checkpoint.tensors(dtype), checkpoint.tokenizer.eos_token_ids
    return architecture, load_weights(architecture, tensors, dtype, device, lambda layer: layer), eos


def jobs(vocab: int, limit: int | None = None) -> Iterator[Job]:
    for number in count() if limit is None else range(limit):
        rng = random.Random(number)
        prompt = [rng.randrange(10, vocab) for _ in range(rng.randint(*PROMPT))]
        yield Job(prompt, float(number % 2), rng.randint(NEW // 4, NEW), number, "random")


def measure(writer: Writer, vocab: int, seconds: float) -> dict[str, Any]:
    device = torch.device("cuda") if torch.cuda.is_available() else None

    def settled() -> float:
        if device is not None:
            torch.cuda.synchronize()
        return perf_counter()

    warm = 2 * (PROMPT[1] + NEW)  # steps until lanes are out of step with one another
    sequences = answers = 0
    start, first = 0.0, 0
    for written in writer.write(jobs(vocab)):
        if not start and writer.steps >= min(warm, 64 if device is None else warm):
            start, first = settled(), writer.steps
        if start:
            sequences += 1
            answers += len(written.answer)
            if perf_counter() - start > seconds:
                break
    took = settled() - start
    steps = writer.steps - first
    return {
        "seconds": round(took, 2),
        "steps": steps,
        "ms_per_step": round(1000 * took / steps, 3),
        "tokens_per_s": round(steps * writer.lanes / took),
        "answer_tokens_per_s": round(answers / took),
        "sequences_per_s": round(sequences / took, 1),
    }


def agreement(architecture: Architecture, weights: DecoderWeights[LayerWeights]) -> float:
    """The share of greedy first tokens on which the kernels and plain PyTorch agree."""

    def first_tokens(kernels: type[TorchOperations] | None) -> dict[int, int]:
        writer = Writer(architecture, weights, (), lanes=64, context=600, seed=0, kernels=kernels)
        asked = (job._replace(temperature=0.0, max_new=1) for job in jobs(architecture.vocab_size, 64))
        if kernels is not None and writer._graphs is not None:
            # It measures the longest lane on the host, so it cannot be recorded.
            writer._graphs._enabled = False
        return {written.number: int(written.answer[0]) for written in writer.write(asked)}

    ours, plain = first_tokens(None), first_tokens(TorchOperations)
    return sum(ours[number] == plain[number] for number in plain) / len(plain)


def profile(writer: Writer, vocab: int) -> list[dict[str, Any]]:
    """Where a step's time goes, by kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    running = writer.write(jobs(vocab))
    next(running)
    for _ in range(writer.lanes // 2):
        next(running)
    before = writer.steps
    with profiled(activities=[ProfilerActivity.CUDA]) as taken:
        while writer.steps < before + 32:
            next(running)
        torch.cuda.synchronize()
    steps = writer.steps - before
    events = sorted(taken.key_averages(), key=lambda event: -event.device_time_total)[:14]
    return [
        {"kernel": event.key[:60], "us_per_step": round(event.device_time_total / steps, 1), "calls": event.count}
        for event in events
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="135m")
    parser.add_argument("--model", help="a real model instead of random weights")
    parser.add_argument("--lanes", type=int, default=None, help="at most; 2048 on a GPU, 8 on a CPU unless given")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--interval", type=int, help="steps between two looks at the lanes")
    parser.add_argument("--profile", action="store_true", help="also list the kernels of a step (GPU)")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    architecture, weights, eos = load(options, device, dtype)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        "model": options.model or f"random {options.shape}",
    }
    if on_gpu:
        result["kernels_agree"] = agreement(architecture, weights)
    most = options.lanes or (2048 if on_gpu else 8)
    lanes = fitting_lanes(architecture, dtype, device, context=options.context, most=most)
    size = {"lanes": lanes, "context": options.context, "seed": 0, "interval": options.interval}
    writer = Writer(architecture, weights, eos, **size)
    result |= {"lanes": lanes, "context": options.context, **measure(writer, architecture.vocab_size, options.seconds)}
    if on_gpu:
        result["memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 1)
        if options.profile:
            result["profile"] = profile(writer, architecture.vocab_size)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
