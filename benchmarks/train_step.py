"""What one training step costs, on the machine at hand: random texts, the default model's shape, random weights.

    python benchmarks/train_step.py [--texts 77] [--length 512] [--prompt 158] [--steps 20] [--plain] [--out FILE]

Prints JSON. `tokens_per_second` and `ms` are of whole steps one after the other, as in training. On a GPU, for every
part: `gpu_ms`, the sum of its kernels' times (by PyTorch's profiler, one step); and `host_ms`, the time it takes the
host to launch it (whole, on texts so small that the GPU has nothing to do). A step takes about the longer of the two.
`head` is what the other parts leave: the head's layers forwards and backwards. `kernels` lists the costliest ones.
`--plain` measures plain PyTorch instead of our own kernels.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from outrider.bench.shapes import SHAPES, random_weights
from outrider.models.head.config import HeadConfig
from outrider.models.head.module import HeadModule
from outrider.models.weights import load_weights
from outrider.train.arithmetic import PlainArithmetic, arithmetic_for
from outrider.train.batch import Texts
from outrider.train.divergence import LOSSES, TargetDistribution, diverge
from outrider.train.head_student import HeadStudent, Unroll, start_from_target
from outrider.train.optimizer import Optimizer
from outrider.train.teacher import Teacher

Part = Callable[[], object]
_SMALL = (2, 64, 20)
"""Texts, tokens and prompt of the batch that host times are taken on."""


class Setup:
    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        self.device = device
        architecture = SHAPES[arguments.shape]
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        weights = load_weights(
            architecture, random_weights(architecture, device, dtype, 0), dtype, device, lambda layer: layer
        )
        self.arithmetic = PlainArithmetic() if arguments.plain else arithmetic_for(device)
        longest = max(arguments.length, _SMALL[1])
        self.teacher = Teacher(architecture, weights, longest, self.arithmetic)
        self.ids = torch.arange(arguments.vocab) * (architecture.vocab_size // arguments.vocab)
        module = HeadModule(HeadConfig.beside(architecture, len(self.ids), arguments.layers))
        start_from_target(module, weights, self.ids)
        self.mix = LOSSES[arguments.loss]
        self.student = HeadStudent(module, self.ids, self.teacher, self.mix, Unroll(arguments.unroll), longest)
        self.descent = Optimizer(self.student, 1e-4, device)
        self.unroll = arguments.unroll

    def texts(self, count: int, length: int, prompt: int) -> Texts:
        """Lengths and prompts that differ about as much as they do in training."""
        draw = torch.Generator().manual_seed(0)
        tokens = torch.randint(0, self.teacher.architecture.vocab_size, (count, length), generator=draw)
        lengths = torch.randint(int(0.72 * length), length + 1, (count,), generator=draw).tolist()
        lengths[0] = length
        prompts = torch.randint(prompt, prompt + min(64, length // 8), (count,), generator=draw).tolist()
        texts = Texts(tokens, lengths, prompts, [False] * count)
        texts.prepare(self.device)
        return texts

    def parts(self, texts: Texts) -> dict[str, Part]:
        """Each can be run again and again."""
        device, module = self.device, self.student.module
        where = texts.answers()[0].to(device)
        states = torch.randn(len(where), module.config.architecture.hidden, device=device, dtype=self.teacher.dtype)
        states.requires_grad_()
        weight, right = torch.ones(len(where), device=device), torch.zeros_like(where)
        logits = torch.randn(len(where), len(self.ids), device=device, dtype=self.teacher.dtype)

        def step() -> None:
            loss, _ = self.descent.gradients(texts)
            self.descent.update(loss, 1.0, 10)

        def teacher() -> None:
            tokens = texts.tokens.to(device, non_blocking=True)
            taught = self.teacher.read(tokens, module.config.aux_hidden_layers)
            self.teacher.logits(taught.final.flatten(0, 1)[where - 1], self.student.ids)

        def loss() -> None:
            target = TargetDistribution.of(logits, right, self.arithmetic)
            total = torch.zeros((), device=device)
            for _ in range(self.unroll):
                each, _ = diverge(states, module.lm_head.weight, target, weight, self.mix, self.arithmetic)
                total = total + each
            total.backward()  # type: ignore[no-untyped-call]

        def optimiser() -> None:
            for parameter in module.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            self.descent.update(torch.zeros((), device=device), 1.0, 10)

        return {"step": step, "teacher": teacher, "loss": loss, "optimiser": optimiser}


def wall_ms(part: Part, device: torch.device, steps: int) -> float:
    """Mean, after two runs to warm up."""
    for _ in range(2):
        part()
    _wait(device)
    start = perf_counter()
    for _ in range(steps):
        part()
    _wait(device)
    return 1000 * (perf_counter() - start) / steps


def gpu_ms(part: Part) -> tuple[float, list[dict[str, Any]]]:
    """Of one run: the sum of its kernels' times, and the costliest kernels."""
    part()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        part()
        torch.cuda.synchronize()
    found = [(e.self_device_time_total / 1000, e.count, e.key) for e in profile.key_averages()]
    found.sort(reverse=True)
    listed = [{"ms": round(ms, 3), "calls": calls, "name": name[:100]} for ms, calls, name in found[:25]]
    return sum(ms for ms, _, _ in found), listed


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def split(times: dict[str, float]) -> dict[str, float]:
    rest = times["step"] - sum(ms for name, ms in times.items() if name != "step")
    return {name: round(ms, 2) for name, ms in {**times, "head": rest}.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="135m")
    parser.add_argument("--texts", type=int, default=77)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--prompt", type=int, default=158, help="tokens of the shortest prompt")
    parser.add_argument("--vocab", type=int, default=16384, help="draft vocabulary")
    parser.add_argument("--layers", type=int, default=1, help="of the head")
    parser.add_argument("--unroll", type=int, default=5)
    parser.add_argument("--loss", choices=list(LOSSES), default="kl")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--plain", action="store_true", help="plain PyTorch instead of our kernels")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="write the JSON there too")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    on_gpu = device.type == "cuda"
    started = perf_counter()
    setup = Setup(arguments, device)
    texts = setup.texts(arguments.texts, arguments.length, arguments.prompt)
    parts = setup.parts(texts)
    parts["step"]()
    _wait(device)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
        "torch": torch.__version__,
        "arguments": {k: v for k, v in vars(arguments).items() if k not in ("out", "device")},
        "tokens": texts.count,
        "padded_tokens": texts.tokens.numel(),
        "answer_tokens": len(texts.answers()[0]),
        "first_step_s": round(perf_counter() - started, 1),
    }
    ms = wall_ms(parts["step"], device, arguments.steps)
    result |= {"ms": round(ms, 2), "tokens_per_second": round(1000 * texts.count / ms)}
    if on_gpu:
        small = setup.parts(setup.texts(*_SMALL))
        result["host_ms"] = split({name: wall_ms(part, device, arguments.steps) for name, part in small.items()})
        measured = {name: gpu_ms(part) for name, part in parts.items()}
        result["gpu_ms"] = split({name: total for name, (total, _) in measured.items()})
        result["kernels"] = {name: listed for name, (_, listed) in measured.items() if name in ("step", "teacher")}
        result["peak_memory_GB"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    else:
        result["wall_ms"] = split({name: wall_ms(part, device, arguments.steps) for name, part in parts.items()})
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
