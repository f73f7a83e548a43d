"""What fails on a device, and who is there to notice: for tests of faults. The errors are PyTorch's own classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from any_order import drafters, expected, made
from device_requests import stepped
from tiny_gpu_head import VOCAB

from outrider.control.controller import FixedLength
from outrider.engine.crew import Crew
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.models.cuda.decoder import CudaDecoder
from outrider.sampling.params import SamplingParams

FAULTS: dict[str, Callable[[], Exception]] = {
    "memory": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "launch": lambda: RuntimeError("Triton Error [CUDA]: invalid argument"),
    "sync": lambda: torch.AcceleratorError("CUDA error: unspecified launch failure"),
}
KINDS = ["none", pytest.param("model", marks=pytest.mark.slow), "head", pytest.param("trees", marks=pytest.mark.slow)]


class Reader:
    begun = 0.0

    def __init__(self, *requests: Request) -> None:
        self.requests = requests
        self.tokens: list[int] = []
        self.error: Exception | None = None


class Ship:
    """A crew, and what each of its readers was given."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.crew: Crew[Reader] = Crew(
            engine,
            lambda reader, chunk: reader.tokens.extend(chunk.token_ids),
            lambda reader, why: setattr(reader, "error", why),
            lambda: made(999, [5], SamplingParams(temperature=0, max_tokens=1)),
        )

    def board(self, requests: Sequence[Request]) -> list[Reader]:
        readers = [Reader(one) for one in requests]
        for reader in readers:
            self.crew.add(reader)
        return readers

    def sail(self, steps: int = 2000) -> None:
        for _ in range(steps):
            if self.crew.idle:
                return
            self.crew.step()
        raise AssertionError("no end")


def several(tokens: int = 14) -> list[Request]:
    """Greedy and drawn, of which some begin alike."""
    ways: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1.0, "seed": 3},
        {"temperature": 0.7, "seed": 4},
        {"temperature": 0},
        {"temperature": 1.0, "seed": 5},
    ]
    begin = [i % VOCAB for i in range(20)]
    return [made(i, [*begin[: 4 * i], 2, i], SamplingParams(max_tokens=tokens, **way)) for i, way in enumerate(ways)]


def engine_of(kind: str, target: CudaDecoder, on_device: bool = True) -> Engine:
    length = FixedLength(0) if kind == "none" else FixedLength(3, kind == "trees")
    return stepped(target, drafters(kind, target), length, on_device=on_device)


def check(target: CudaDecoder, readers: Sequence[Reader]) -> None:
    for reader in readers:
        (one,) = reader.requests
        whole = expected(target, one)
        assert reader.error is None
        assert one.tokens == whole
        assert reader.tokens == whole[one.prompt_length :], "nothing is given twice, nor lost"


def planted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, when: Callable[..., bool], why: str) -> list[int]:
    """From now on that method raises an error of the device whenever `when` says so of a call. Returns how often, in a
    list of one."""
    real, count = getattr(owner, name), [0]

    def failing(*args: Any, **options: Any) -> Any:
        if when(*args, **options):
            count[0] += 1
            raise FAULTS[why]()
        return real(*args, **options)

    monkeypatch.setattr(owner, name, failing)
    return count


def once(after: int) -> Callable[..., bool]:
    """True of one call, after so many others."""
    left = [after]

    def when(*_: Any, **__: Any) -> bool:
        left[0] -= 1
        return left[0] == -1

    return when
