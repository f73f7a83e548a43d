"""What steps on a device take the host: everything but the device's own work, which is made up here.

    python benchmarks/host_pace.py [--concurrency 16,64] [--rounds 5] [--arms plain,auto] [--profile]

Engine, controller, lanes, books, tables and what is staged for a device are the real ones, over a tiny model with a
tiny head on the CPU; recorded launches do nothing but write made-up tokens, which takes no time here. So a step takes
what the host takes for it, but for launches, copies and waiting themselves. Costs of steps are those of an H200 and
stand still, so that what is decided depends on nothing but tokens: two checkouts that print the same digest have
decided alike. Leave the machine otherwise idle; run checkouts by turns, with PYTHONPATH.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import pstats
from collections.abc import Sequence
from hashlib import sha256
from itertools import count
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are imported

import numpy as np
import torch

from outrider.bench.head_shapes import random_head
from outrider.bench.questions import builtin, interleaved
from outrider.bench.shapes import random_weights
from outrider.control.auto import AutoLength
from outrider.control.trees import TREES
from outrider.core.step import step_width
from outrider.drafters.head import HeadDrafter
from outrider.drafters.mix import MixDrafter
from outrider.drafters.none import NoDrafter
from outrider.drafters.router import RouterDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine.crew import Crew
from outrider.engine.device_executor import DeviceExecutor
from outrider.engine.engine import Engine
from outrider.models.architecture import Architecture, LayerShape, Rope
from outrider.models.checkpoints.checkpoint import open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.lanes import MAX_LENGTH
from outrider.models.head.config import HeadConfig
from outrider.models.head.load import place_head
from outrider.request_builder import RequestBuilder
from outrider.sampling.grammar import Grammars
from outrider.sampling.params import SamplingParams

MODEL = "smollm2-135m"
CPU = torch.device("cpu")
RIGHT = 0.55
"""How often a drafted token is, where those before it are."""
PLAIN = {1: 0.65e-3, 2: 0.66e-3, 4: 0.68e-3, 8: 0.72e-3, 16: 0.78e-3, 32: 0.95e-3, 64: 1.26e-3}
LEVEL, ROW = 0.055, 0.03
"""Of a plain step: a level drafted, a token verified."""


class Reader:
    """Of one request."""

    def __init__(self, request: Any) -> None:
        self.requests = (request,)
        self.begun = perf_counter()


class Device:
    """Recorded launches of one engine, pretended: what they would have taken is not asked, and what it takes to
    pretend is left out."""

    def __init__(self, engine: Engine, vocab: int) -> None:
        assert isinstance(engine.executor, DeviceExecutor)
        stepper: Any = engine.executor._stepper
        clock: Any = engine.executor._clock
        self.pretending = 0.0
        self.steps = 0
        self.digest = sha256()
        self._out = stepper._board.out
        self._made: dict[tuple[int, int, int], list[torch.Tensor]] = {}
        self._vocab = vocab
        stepper._graphs.run = self._run
        networks: list[Any] = engine.networks
        for network in networks:
            network.graphs.run = lambda *_: None
        known = {
            lanes: {s: PLAIN[lanes] * (1 + LEVEL * s.drafted + ROW * s.verified) for s in fitting}
            for lanes, fitting in stepper._sizes(engine.executor._shapes)
        }
        stepper._seconds = known
        clock.seconds = lambda lanes: known[step_width(lanes)]
        clock.idles = lambda *_: False

    def _run(self, key: tuple[Any, ...], _: object) -> None:
        began = perf_counter()
        if key[0] in ("verify", "verify a tree", "begin"):
            kind, lanes, length, *rest = key
            nodes = rest[0] if kind == "verify a tree" else 0
            length = 0 if kind == "begin" else length
            self.digest.update(repr(key).encode())
            known = self._made.setdefault((lanes, length, nodes), [])
            if len(known) < 61:
                known.append(self._outcomes(lanes, length, nodes, len(known)))
            self._out[:lanes] = known[self.steps % len(known)]
            self.steps += 1
        self.pretending += perf_counter() - began

    def _outcomes(self, lanes: int, length: int, nodes: int, seed: int) -> torch.Tensor:
        """Of a tree the first path is its longest, and all others are of one node."""
        random = Random(f"{length} {seed}")
        out = torch.zeros(lanes, self._out.shape[1], dtype=torch.int32)
        for row in out.numpy():
            tokens = random.sample(range(300, self._vocab), max(length, nodes) + 1)
            accepted = 0
            while accepted < length and random.random() < RIGHT:
                accepted += 1
            row[0], row[1 : 2 + length] = accepted, tokens[: length + 1]
            drafts, parents, claims = np.split(row[2 + MAX_LENGTH : -1], 3)
            drafts[:] = -1
            drafts[: nodes or length] = tokens[: nodes or length]
            drafts[accepted : accepted + 1] = 299
            if nodes:
                parents[:nodes] = [*range(-1, length - 1), *[-1] * (nodes - length)]
                claims[:nodes].view(np.float32)[:] = 0.5
        return out


def made(batch: int, auto: bool, vocab: int) -> Engine:
    shape = Architecture(
        family="llama",
        vocab_size=vocab,
        hidden=64,
        heads=2,
        kv_heads=1,
        head_dim=16,
        mlp=96,
        norm_eps=1e-5,
        max_context=1024,
        layers=(LayerShape(0, 0),),
        ropes=(Rope(10_000.0, 16),),
        tied=True,
        attention_scale=0.25,
    )
    weights = random_weights(shape, CPU, torch.float32, seed=1)
    target = CudaDecoder.load(shape, weights, torch.float32, CPU, max_batch=batch, max_context=1024)
    if not auto:
        return Engine(target, RouterDrafter(NoDrafter(), {}), AutoLength())
    config = HeadConfig.beside(shape, 32_000, 1, aux_hidden_layers=(0, 1))
    head = place_head(random_head(config, CPU, torch.float32, seed=2), target)
    drafter = RouterDrafter(MixDrafter(HeadDrafter(head, vocab), SuffixDrafter()), {})
    return Engine(target, drafter, AutoLength(acceptance={"head": (0.6, 0.55, 0.5)}, trees=TREES))


def run(engine: Engine, device: Device, requests: Sequence[Any], flight: int) -> dict[str, Any]:
    """Seconds of steps in which nobody came or went, and of all, without what pretending took."""
    coming, gained, plain_steps, whole = list(reversed(requests)), 0, list[tuple[float, int]](), 0.0

    def deliver(reader: Reader, chunk: Any) -> None:
        nonlocal gained
        gained += len(chunk.token_ids)

    crew = Crew[Any](engine, deliver, lambda reader, error: print(error))
    steps = device.steps
    while coming or not crew.idle:
        came = False
        began, apart = perf_counter(), device.pretending
        while coming and len(crew._states) < flight:
            crew.add(Reader(coming.pop()))
            came = True
        before, here = gained, len(crew._states)
        joining = any(s.num_uncomputed_tokens or s.slot < 0 for s in (*engine.scheduler.running,))
        crew.step()
        seconds = perf_counter() - began - (device.pretending - apart)
        whole += seconds
        if not came and not joining and len(crew._states) == here == flight:
            plain_steps.append((seconds, gained - before))
    tokens = sum(s.generated for s in requests)
    return {
        "steps": device.steps - steps,
        "tokens": tokens,
        "a_step": tokens / (device.steps - steps) / flight,
        "step": median([seconds for seconds, _ in plain_steps]),
        "step_token": sum(seconds for seconds, _ in plain_steps) / sum(gained for _, gained in plain_steps),
        "token": whole / tokens,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", default="16,64")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--arms", default="plain,auto")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = open_checkpoint(MODEL, SilentProgress()).tokenizer
    vocab = 49_152
    asked = [q.turns[0] for q in interleaved(builtin())]
    prompts = [tokenizer.apply_chat_template([{"role": "user", "content": text}], True)[:200] for text in asked]
    ids = count()
    for flight in map(int, options.concurrency.split(",")):
        for arm in options.arms.split(","):
            engine = made(flight, arm == "auto", vocab)
            device = Device(engine, vocab)
            builder = RequestBuilder(engine.model, tokenizer, {}, Grammars(tokenizer, vocab), (), True, ids)
            found = []
            for number in range(options.rounds + 1):
                random = Random(number)
                requests = [
                    builder.build(
                        prompts[i % len(prompts)],
                        SamplingParams(
                            temperature=0.7, top_p=0.9, seed=i, max_tokens=random.randint(32, 128), ignore_eos=True
                        ),
                        cache_salt=f"{number}.{i // len(prompts)}",
                    )
                    for i in range(4 * flight)
                ]
                gc.collect()
                gc.freeze()
                watched = cProfile.Profile() if options.profile and number == options.rounds else None
                if watched:
                    watched.enable()
                each = run(engine, device, requests, flight)
                if watched:
                    watched.disable()
                    pstats.Stats(watched).sort_stats("tottime").print_stats(45)
                if number:
                    found.append(each)
            told = {key: (min(each[key] for each in found), median(each[key] for each in found)) for key in found[0]}
            times = ", ".join(
                f"{name} {1e6 * told[key][0]:.1f} ({1e6 * told[key][1]:.1f})"
                for name, key in (("step", "step"), ("its tokens", "step_token"), ("all, a token", "token"))
            )
            tokens = f"{told['a_step'][1]:.2f} tokens a step"
            print(
                f"{flight:3} {arm:6} us, least (median): {times}; {tokens}; {device.digest.hexdigest()[:8]}", flush=True
            )


if __name__ == "__main__":
    main()
