"""Many clients at once: what a server loses (nothing), changes (nothing) and gains.

    python benchmarks/serve_load.py [--clients 16] [--requests 20] [--rounds 2] [--out FILE] [--serve "--model … …"]

Starts `outrider serve` with the default model, then asks the built-in questions with answers of mixed lengths, half of
them greedy and half sampled with a seed, through the official `openai` client:

1. alone: every request once, plainly, nothing beside it: the answers all others must be equal to;
2. load: `--clients` clients, each `--requests` requests one after the other, speculating;
3. rate: at 1, 4 and 16 clients plainly and speculating in turn, the same requests, `--rounds` times.

Speeds are ratios between arms of one run on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from openai import AsyncOpenAI

from outrider.bench.measured_model import MeasuredModel
from outrider.bench.questions import builtin, interleaved
from outrider.models.checkpoints.progress import SilentProgress

LENGTHS = (16, 32, 64, 96, 128)
CLIENTS = (1, 4, 16)
MODEL = "smollm2-135m"


@dataclass(frozen=True)
class Ask:
    prompt: str
    max_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True)
class Answer:
    text: str
    tokens: int


def asks(count: int) -> list[Ask]:
    questions = interleaved(builtin())
    return [
        Ask(questions[i % len(questions)].turns[0], LENGTHS[i % len(LENGTHS)], float(i % 2), i) for i in range(count)
    ]


async def answer(client: AsyncOpenAI, ask: Ask, speculate: bool) -> Answer:
    got = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": ask.prompt}],
        max_tokens=ask.max_tokens,
        temperature=ask.temperature,
        seed=ask.seed,
        extra_body={"outrider": {"speculate": speculate}},
    )
    assert got.usage is not None
    return Answer(got.choices[0].message.content or "", got.usage.completion_tokens)


async def together(client: AsyncOpenAI, wanted: list[Ask], clients: int, speculate: bool) -> list[Answer]:
    """All of `wanted`, `clients` at a time: each takes the next one when it is done."""
    found: dict[int, Answer] = {}
    left = iter(enumerate(wanted))

    async def one() -> None:
        for i, ask in left:
            found[i] = await answer(client, ask, speculate)

    await asyncio.gather(*(one() for _ in range(clients)))
    return [found[i] for i in range(len(wanted))]


async def timed(client: AsyncOpenAI, wanted: list[Ask], clients: int, speculate: bool) -> tuple[list[Answer], float]:
    started = time.perf_counter()
    answers = await together(client, wanted, clients, speculate)
    return answers, time.perf_counter() - started


async def measure(client: AsyncOpenAI, options: argparse.Namespace) -> dict[str, Any]:
    wanted = asks(options.clients * options.requests)
    alone, seconds = await timed(client, wanted, 1, speculate=False)
    tokens = sum(a.tokens for a in alone)
    print(f"alone: {len(alone)} answers, {tokens} tokens, {tokens / seconds:.1f} tok/s", flush=True)
    result: dict[str, Any] = {
        "requests": len(wanted),
        "tokens": tokens,
        "one_by_one_tokens_per_second": tokens / seconds,
    }
    answers, loaded = await timed(client, wanted, options.clients, speculate=True)
    equal = sum(a == b for a, b in zip(answers, alone, strict=True))
    result["load"] = {
        "clients": options.clients,
        "answers": len(answers),
        "equal_to_alone": equal,
        "tokens_per_second": sum(a.tokens for a in answers) / loaded,
        "against_one_by_one": seconds / loaded,
    }
    print(f"load: {equal} of {len(wanted)} equal, {seconds / loaded:.2f}x one by one", flush=True)
    result["rate"] = [await rate(client, wanted, alone, clients, options.rounds) for clients in CLIENTS]
    return result


async def rate(
    client: AsyncOpenAI, wanted: list[Ask], alone: list[Answer], clients: int, rounds: int
) -> dict[str, Any]:
    """Speculating against plain batching, in turn, whoever is first changing."""
    some = wanted[: 30 if clients == 1 else 20 * clients]
    ratios, seconds = [], {False: 0.0, True: 0.0}
    for turn in range(rounds):
        took = {}
        for speculate in (False, True) if turn % 2 == 0 else (True, False):
            answers, took[speculate] = await timed(client, some, clients, speculate)
            assert answers == alone[: len(some)], f"{clients} clients, speculate={speculate}: answers differ"
            seconds[speculate] += took[speculate]
        ratios.append(took[False] / took[True])
    total = seconds[False] / seconds[True]
    print(
        f"{clients} clients: speculating {total:.3f}x plain batching ({', '.join(f'{r:.3f}' for r in ratios)})",
        flush=True,
    )
    return {
        "clients": clients,
        "requests": len(some),
        "rounds": rounds,
        "against_plain_batching": total,
        "each": ratios,
        "median": statistics.median(ratios),
    }


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if server.poll() is not None:
            sys.exit("the server ended before it was ready")
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    sys.exit("the server was not ready within two minutes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=20, help="of each client")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--serve", default="", help="more options of outrider serve")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    about = MeasuredModel(MODEL, "bf16", "cpu", None, SilentProgress()).provenance(os.cpu_count() or 1)
    port = free_port()
    command = [sys.executable, "-c", "from outrider.cli.main import main; main()", "serve", "--port", str(port)]
    command += ["--max-batch", "16", "--max-context", "2048", *shlex.split(options.serve)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_ready(url, server)
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=600, max_retries=0)
        result = {"provenance": about, **asyncio.run(measure(client, options))}
    finally:
        server.terminate()
        server.wait(30)
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
