"""From a checkpoint to a running model: choose device, dtype and decoder."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from outrider.checks import flag, number, whole
from outrider.core.model import LanguageModel
from outrider.errors import InvalidRequest, shown
from outrider.models.backend import GPU_MEMORY, Backend, Placement
from outrider.models.backends import BACKENDS, CUDA_BACKEND, NATIVE_BACKEND
from outrider.models.checkpoints.checkpoint import Checkpoint
from outrider.models.cpu import cpu_name, has_bf16
from outrider.models.dtypes import short_name
from outrider.models.memory import available
from outrider.models.native.library import library
from outrider.models.precision import BF16, FP8, FP16, FP32, INT8, NATIVE, PRECISIONS, Precision

_MOST_THREADS, _MOST_BATCH = 1024, 65536
"""Beyond any machine; PyTorch and the caches would rather break than refuse."""

_CPU_BATCH, _GPU_BATCH, _LARGE_GPU_BATCH = 16, 64, 256
"""Requests that run together unless somebody says how many. A GPU reads the weights of a pass once for all of them, a
CPU multiplies them for each."""
_LARGE_GPU = 36 * 2**30
"""Bytes of its memory: one that is sold as of 40 GB has a little less than that."""


def placement(
    *,
    device: str | torch.device,
    dtype: str | torch.dtype,
    bitwise: bool | None,
    threads: int | None,
    max_batch: int | None,
    max_context: int | None,
    gpu_memory: float = GPU_MEMORY,
) -> Placement:
    """Check what was asked for against this machine; `dtype` by either spelling, or as PyTorch's. Changes nothing."""
    if threads is not None:
        whole("threads", threads, 1, _MOST_THREADS)
    if max_batch is not None:
        whole("max_batch", max_batch, 1, _MOST_BATCH)
    if max_context is not None:
        whole("max_context", max_context, 1)
    if bitwise is not None:
        flag("bitwise", bitwise)
    number("gpu_memory", gpu_memory, 0, 1, above=True)
    place = _device(device)
    name = short_name(dtype)
    auto = name == "auto"
    precision = automatic(place, kernels=library() is not None, bf16=has_bf16()) if auto else PRECISIONS[name]
    if precision is FP8 and place.type != "cuda":
        raise InvalidRequest("dtype: fp8 is for GPUs; use int8 on the CPU, which takes as little memory")
    cores = threads or torch.get_num_threads()
    return Placement(place, precision, bitwise, cores, max_batch or _usual_batch(place), max_context, auto, gpu_memory)


def set_process_threads(place: Placement) -> None:
    """Have PyTorch use as many threads as this place has: in the whole process, it knows no other way. Our own kernels
    have theirs per model."""
    if place.threads != torch.get_num_threads():
        torch.set_num_threads(place.threads)


def _usual_batch(place: torch.device) -> int:
    if place.type != "cuda":
        return _CPU_BATCH
    return _LARGE_GPU_BATCH if torch.cuda.get_device_properties(place).total_memory >= _LARGE_GPU else _GPU_BATCH


def _device(asked: object) -> torch.device:
    if isinstance(asked, str) and asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(asked) if isinstance(asked, str | torch.device) else None
    except RuntimeError:  # not the form of a device, or none that PyTorch knows
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InvalidRequest(f"device must be auto, cpu, cuda or cuda:N, got {shown(asked)}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest("device: PyTorch sees no CUDA GPU here; use cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidRequest(f"device: there is no {device}; PyTorch sees {torch.cuda.device_count()} here, from 0 on")
    return device


def automatic(device: torch.device, *, kernels: bool, bf16: bool) -> Precision:
    """The number format where nobody asked for one. Our CPU kernels widen bf16 weights as they read them, on every CPU;
    PyTorch needs bf16 instructions for that, and is tens of times slower than in fp32 without them."""
    return FP32 if device.type == "cpu" and not kernels and not bf16 else BF16


def settled(checkpoint: Checkpoint, place: Placement) -> Placement:
    """The place with the number format that this model runs in there."""
    if not place.auto:
        return place
    precision = place.precision
    if place.device.type == "cpu":
        against = NATIVE_BACKEND.unsupported_reason(checkpoint.config, replace(place, precision=BF16))
        precision = automatic(place.device, kernels=against is None, bf16=has_bf16())
        if against is None and not _fits(checkpoint) and checkpoint.weights.stored() is not None:
            precision = NATIVE
    elif checkpoint.weights.fp8() is not None:
        published = replace(place, precision=FP8)
        precision = precision if CUDA_BACKEND.unsupported_reason(checkpoint.config, published) else FP8
    return replace(place, precision=precision, auto=False)


def _fits(checkpoint: Checkpoint) -> bool:
    """Whether there is memory for the weights in bf16, as far as the system tells."""
    free = available()
    return free is None or BF16.weights.itemsize * checkpoint.weights.parameters <= free


def about_quantised(checkpoint: Checkpoint, asked: Placement, place: Placement) -> str | None:
    """What to tell a person with a quantised file who asked for no number format: that it stays as it is for want of
    memory; or, of a large one, that it is widened, and need not be."""
    size = BF16.weights.itemsize * checkpoint.weights.parameters / 1e9
    widened = place.precision is BF16 and size >= _LARGE
    if not asked.auto or place.device.type != "cpu" or not (widened or place.precision is NATIVE):
        return None
    if checkpoint.weights.stored() is None:
        return None
    if not widened:
        return (
            f"in bf16 the weights would take {size:.1f} GB, more memory than is free, so they stay as the file "
            "quantised them (--dtype native)"
        )
    if NATIVE_BACKEND.unsupported_reason(checkpoint.config, replace(place, precision=NATIVE)) is not None:
        return None
    return (
        f"the file is quantised, and as bf16 its weights take {size:.1f} GB; --dtype native leaves them as they are: "
        "less memory, and faster on most CPUs"
    )


_LARGE = 1.0
"""GB from which on it is worth a note how weights are kept."""


def beside(place: Placement, draft: Checkpoint) -> Placement:
    """Where a draft model runs: beside a target in fp32 or fp16 as that does, else in eight bits, for its passes cost
    about half then, and whatever it drafts is verified. What a file quantised stays so where its target's does; what
    our kernels cannot compute in eight bits runs in bf16."""
    on_cpu = place.device.type == "cpu"
    stays = place.precision.stored and draft.weights.stored() is not None
    if stays or place.precision in (FP32, FP16):
        return place
    eighth = replace(place, precision=INT8 if on_cpu else FP8)
    backend = NATIVE_BACKEND if on_cpu else CUDA_BACKEND
    against = backend.unsupported_reason(draft.config, eighth)
    return eighth if against is None else replace(place, precision=BF16)


def too_many_threads(place: Placement) -> str | None:
    """What to tell a person who asked for more threads than can run: each pass waits for the last of them."""
    cores = os.cpu_count() or place.threads
    if place.device.type != "cpu" or place.threads <= cores:
        return None
    return (
        f"{place.threads} threads take turns on {cores} core{'s' * (cores > 1)}, slower than as many threads as cores"
    )


def missing_kernels(place: Placement) -> str | None:
    """What to tell a person whose CPU has to do without our kernels: that it is so, and what to do."""
    if place.device.type != "cpu" or library() is not None:
        return None
    return (
        f"the compiled CPU kernels are missing, so PyTorch decodes, slower, in {place.precision.name}; "
        "install a C compiler, then Outrider again with pip's --force-reinstall --no-deps --no-cache-dir"
    )


def described(place: Placement, model: LanguageModel) -> str:
    """What runs here, in a line: number format, and the instructions or the device."""
    if place.device.type != "cpu":
        return f"{place.precision.name} on {torch.cuda.get_device_name(place.device)}"
    by = f"{model.kernels} kernels" if model.kernels else "PyTorch"
    return f"{place.precision.name} on {cpu_name()}, {by}, {place.threads} thread{'s' * (place.threads > 1)}"


def load_model(checkpoint: Checkpoint, place: Placement) -> LanguageModel:
    """By the fastest decoder that runs this checkpoint at this place.

    Bit-exact rows (level C) by default wherever our own kernels run, which compute no other way; elsewhere on request.
    """
    place = settled(checkpoint, place)
    return fastest(checkpoint, place).load(checkpoint, place)


def fastest(checkpoint: Checkpoint, place: Placement) -> Backend:
    """Who loads it there, at a place that is settled; `InvalidRequest` where nobody can."""
    reasons = []
    for backend in BACKENDS:
        against = backend.unsupported_reason(checkpoint.config, place)
        if against is None:
            return backend
        reasons.append(against)
    if place.precision.quantised:
        name = place.precision.name
        decoder, against = ("GPU", reasons[1]) if place.precision is FP8 else ("compiled CPU", reasons[0])
        raise InvalidRequest(f"dtype: {name} weights need the {decoder} decoder, but {against}; use bf16")
    raise InvalidRequest(f"bitwise: {', and '.join(reasons[-2:])}")
