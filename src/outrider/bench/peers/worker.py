"""Runs one peer as a process of its own: JSON lines in on stdin, JSON lines out on stdout.

    PYTHON worker.py MODULE

MODULE, a file beside this one, offers `load(config) -> peer` with `peer.versions() -> dict` and
`peer.run(ids, max_tokens, temperature, seed, emit)`, which calls `emit(tokens)` once per target pass. The first line
in is the config; the answer is {"ready": versions}. Every further line is a request; the answer is a timing.
Anything that goes wrong is answered as {"error": sentence}. The end of stdin ends the process.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any


def serve(module: str) -> None:
    # Libraries print to stdout as they like; only this file owns the real one.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    peer: Any = None
    for line in sys.stdin:
        try:
            message = json.loads(line)
            if peer is None:
                peer = importlib.import_module(module).load(message)
                answer: dict[str, Any] = {"ready": peer.versions()}
            else:
                answer = measure(peer, message)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".strip().splitlines()[0][:500]}
        out.write(json.dumps(answer) + "\n")
        out.flush()


def measure(peer: Any, request: dict[str, Any]) -> dict[str, Any]:
    """One answer: when the first tokens came, when the last, and how many each pass brought."""
    tokens: list[int] = []
    passes: list[int] = []
    times: list[float] = []

    def emit(new: Sequence[int]) -> None:
        # A last pass may accept more than was asked for; nobody would be given those.
        kept = list(new)[: request["max_tokens"] - len(tokens)]
        if kept:
            times.append(perf_counter())
            passes.append(len(kept))
            tokens.extend(kept)

    started = perf_counter()
    peer.run(request["ids"], request["max_tokens"], request["temperature"], request["seed"], emit)
    if not tokens:
        raise RuntimeError("no token came")
    return {
        "tokens": len(tokens),
        "token_ids": tokens,
        "passes": passes,
        "prefill_seconds": times[0] - started,
        "decode_seconds": times[-1] - times[0],
    }


if __name__ == "__main__":
    serve(sys.argv[1])
