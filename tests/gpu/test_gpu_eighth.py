"""Weights of 8 bits on the GPU: by Triton's interpreter where there is none.

Widening is held against PyTorch, number by number, and products against those of the widened weights, to the bit: so
what differs is the widening, the scale, or the place either was taken from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

import triton
import triton.language as tl
from tiny_gpu import CONTEXT, DEVICE, DTYPE, VOCAB, request
from tiny_gpu import TARGET as NARROWER
from triton.tools.tensor_descriptor import TensorDescriptor

from outrider.bench.shapes import random_weights
from outrider.control.controller import FixedLength
from outrider.core.draft import ROOT
from outrider.core.model import Rows
from outrider.drafters.model import ModelDrafter
from outrider.drafters.none import NoDrafter
from outrider.engine.engine import Engine
from outrider.models.architecture import Architecture
from outrider.models.cuda.backend import HEAD_IN_FP8
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.kernels import eighth_hopper
from outrider.models.cuda.kernels.eighth import widened
from outrider.models.cuda.kernels.fold import UNFUSED
from outrider.models.cuda.kernels.linear import ADD, GATED, STORE, linear_kernel
from outrider.models.cuda.kernels.wide import wide_kernel
from outrider.models.cuda.launches import swizzled
from outrider.models.cuda.words import arranged
from outrider.models.precision import dequantised, quantise_channels
from outrider.sampling.params import SamplingParams

FP8 = torch.float8_e4m3fn
FORMS = [FP8, torch.int8]
ON_GPU = DEVICE.type == "cuda"
COPIES = not ON_GPU or torch.cuda.get_device_capability() >= (9, 0)
APART = ON_GPU and torch.cuda.get_device_capability()[0] == 9


TARGET = replace(NARROWER, heads=4, mlp=64)
"""Widths of 8-bit weights are multiples of 64."""
DRAFT = replace(TARGET, layers=TARGET.layers[:1])


@triton.jit  # type: ignore[untyped-decorator]
def widen_kernel(w_ptr, like_ptr, y_ptr, INTEGERS: tl.constexpr, PACKED: tl.constexpr):  # type: ignore[no-untyped-def]
    word = tl.arange(0, 64)
    like = tl.load(like_ptr + word)
    for i in tl.static_range(4):
        tl.store(y_ptr + i * 64 + word, widened(tl.load(w_ptr + word), like, i, INTEGERS, PACKED))


def in_words(values: Tensor, group: int) -> Tensor:
    copy = values.clone()
    arranged(copy, group)
    return copy.view(torch.int32)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wide", [torch.float16, torch.bfloat16])
def test_every_number_is_widened_exactly(form: torch.dtype, wide: torch.dtype, packed: bool) -> None:
    """Zeros by their sign, subnormal ones; all but the two bytes that are no numbers."""
    if packed and not (ON_GPU and wide == torch.bfloat16):
        pytest.skip("by hand only in bf16, on a GPU")
    every = torch.arange(256, dtype=torch.uint8, device=DEVICE).view(form)
    y = torch.full((256,), torch.nan, dtype=wide, device=DEVICE)
    widen_kernel[(1,)](in_words(every[None], 256), torch.zeros_like(y), y, form == torch.int8, packed)
    expected = every.to(wide)
    real = ~expected.isnan()
    assert real.sum() == (254 if form == FP8 else 256)
    assert torch.equal(y.view(torch.int16)[real], expected.view(torch.int16)[real])


@pytest.mark.parametrize("form", FORMS)
def test_rounding_keeps_every_channel_s_largest_weight(form: torch.dtype) -> None:
    weight = torch.randn(1500, 40, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 3, 1500)[:, None]
    weight[7], weight[8, 1:] = 0, 0
    values, scales = torch.empty(weight.shape, dtype=form), torch.empty(1500)
    quantise_channels(weight, values, scales)
    back = dequantised(values, scales)
    assert not back[7].any()
    largest = weight.abs().argmax(1, keepdim=True)
    torch.testing.assert_close(back.gather(1, largest), weight.gather(1, largest), rtol=1e-6, atol=0)
    each = weight.abs().amax(1, keepdim=True)
    error = (back - weight).abs()
    # Whole numbers are off by half a step, of which there are 127; e4m3 by half of its last bit, a 16th.
    bound = each / 254 if form == torch.int8 else (weight.abs() / 16).maximum(each / 448 * 2**-10)
    assert bool((error <= bound * (1 + 1e-5)).all())
    assert bool((error > bound / 3)[9:].any())


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def product(w: Tensor, scales: Tensor | None, kind: str, how: str) -> list[Tensor]:
    """40 rows times 96 columns of depth 256 in two parts (gated: one)."""
    rows, columns, depth, room = 40, 96, 256, 64
    x, bias, gain = random(room, depth, seed=1, dtype=DTYPE), random(len(w), seed=2), random(columns, seed=3)
    residual, squares = random(room, columns, seed=4, dtype=DTYPE), random(room, 2, seed=5).square()
    y, squares_out = torch.zeros(room, columns, device=DEVICE), torch.zeros(room, 2, device=DEVICE)
    split = 1 if kind == "gated" else 2
    ends = (bias, None, squares, y, residual, gain, squares_out)
    common: dict[str, Any] = {
        "N": columns, "K": depth, "EPILOGUE": {"store": STORE, "add": ADD, "gated": GATED}[kind], "GELU": False,
        "TILES": 2, "LEVELS": 1, "SPLIT": split, "INTEGERS": w.dtype == torch.int8, "PACKED": ON_GPU, **UNFUSED,
    }  # fmt: skip
    parts, step = (1, 16) if scales is None else (4, 64)  # sixteen at a time, either way
    words = w if scales is None else in_words(w, step)
    if how == "narrow":
        scratch = torch.zeros(3 * 2 * 2 * 64 * 16, device=DEVICE)
        counter = torch.zeros(16, dtype=torch.int32, device=DEVICE)
        linear_kernel[(3, 2, split)](
            x, words, scales, *ends, scratch, counter, rows, 1e-5,
            M=16, BLOCK_N=64, BLOCK_K=step, UNROLLED=1 if scales is None else 2, PREFETCH=0, DEPENDENT=False, **common,
        )  # fmt: skip
    elif how == "by roles":
        scratch = torch.zeros(2 * 2 * 64 * 64, device=DEVICE)
        counter = torch.zeros(2, dtype=torch.int32, device=DEVICE)
        eighth_hopper.eighth_hopper_kernel[(1,)](
            swizzled(x, 64, 32), swizzled(in_words(w, 128), 64, 32), scales, *ends[:1], *ends[2:], scratch, counter,
            rows, 1e-5, M=64, STEP=128, STAGES=2, num_warps=4, maxnreg=eighth_hopper.REGISTERS,
            **{name: value for name, value in common.items() if name not in ("EPILOGUE", "PACKED")},
            EPILOGUE=common["EPILOGUE"].value,
        )  # fmt: skip
        assert not counter.any()
    else:
        sources: Any = (x, words)
        if how == "copied":
            sources = tuple(TensorDescriptor.from_tensor(t, [64, step // parts]) for t in sources)
        wide_kernel[(2,)](
            *sources, scales, bias, *ends[2:], rows, 1e-5,
            M=64, BLOCK_N=64, BLOCK_K=step, PARTS=parts, PAIRED=how == "paired", GROUP=1, COPIED=how == "copied",
            **common,
        )  # fmt: skip
    return [y, residual, squares_out]


@pytest.mark.parametrize("how", ["narrow", "wide", "paired", "copied", "by roles"])
@pytest.mark.parametrize("kind", ["store", "add", "gated"])
@pytest.mark.parametrize("form", FORMS)
def test_products_are_those_of_the_widened_weights_to_the_bit(form: torch.dtype, kind: str, how: str) -> None:
    """With scales that are powers of two, which no order of rounding can tell apart: each its own, of gate and up."""
    if how == "copied" and not COPIES:
        pytest.skip("no copy engine here")
    if how == "paired" and kind == "gated":
        pytest.skip("gated products are not split")
    if how == "by roles" and not APART:
        pytest.skip("not on this GPU, or not by the interpreter")
    columns = 192 if kind == "gated" else 96
    values, scales = torch.empty(columns, 256, dtype=form, device=DEVICE), torch.empty(columns, device=DEVICE)
    quantise_channels(random(columns, 256, seed=0), values, scales)
    scales = torch.exp2(torch.arange(columns, device=DEVICE) % 5 - (7.0 if form == torch.int8 else 9.0))
    exact = (values.float() * scales[:, None]).to(DTYPE)
    assert torch.equal(exact.float(), values.float() * scales[:, None])
    found = product(values, scales, kind, how)
    expected = product(exact, None, kind, "narrow" if how == "by roles" else how)
    assert all(map(torch.equal, found, expected))
    assert not torch.equal(found[0], product(values, scales.roll(1), kind, how)[0])


def tensors(architecture: Architecture) -> Iterator[tuple[str, Tensor]]:
    """Large enough for layers to matter."""
    for name, tensor in random_weights(architecture, DEVICE, torch.float32, seed=1):
        yield name, tensor * 8 if tensor.dim() > 1 else tensor


def in_fp8(architecture: Architecture = TARGET, weights: Iterator[tuple[str, Tensor]] | None = None) -> CudaDecoder:
    return CudaDecoder.load(
        architecture, tensors(architecture) if weights is None else weights, DTYPE, DEVICE,
        matrices=FP8, head=HEAD_IN_FP8, max_batch=3, max_context=CONTEXT,
    )  # fmt: skip


def of_8_bits(architecture: Architecture) -> Iterator[tuple[str, Tensor]]:
    """Weights that rounding leaves as they are: with scales that are powers of two, so bf16 holds them, too."""
    for name, tensor in tensors(architecture):
        if tensor.dim() == 1:
            yield name, tensor
            continue
        form = HEAD_IN_FP8 if name == "model.embed_tokens.weight" else FP8
        values = torch.empty(tensor.shape, dtype=form, device=DEVICE)
        scales = torch.empty(len(tensor), device=DEVICE)
        quantise_channels(tensor, values, scales)
        yield name, dequantised(values, torch.exp2(scales.log2().round()))


def said(model: CudaDecoder) -> Tensor:
    return model.forward([Rows.chain(model.open(), range(5, 25))])


def test_the_model_is_the_rounded_one() -> None:
    """A model that 8 bits can hold says the same in bf16, to the bit on a GPU; one that they cannot, something else.

    The interpreter's products differ in their last bits with their depth, and so does what is rounded after them."""
    plain = CudaDecoder.load(TARGET, of_8_bits(TARGET), DTYPE, DEVICE, max_batch=1, max_context=CONTEXT)
    found, expected = said(in_fp8(TARGET, of_8_bits(TARGET))), said(plain)
    if ON_GPU:
        assert torch.equal(found, expected)
    else:
        torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)
    exact = CudaDecoder.load(TARGET, tensors(TARGET), DTYPE, DEVICE, max_batch=1, max_context=CONTEXT)
    assert float((said(in_fp8()) - said(exact)).abs().max()) > 0.1


def test_rows_do_not_depend_on_their_company() -> None:
    """One token a pass against a chain, and against a tree beside another request."""
    model = in_fp8()
    tokens = [7, 3, 80, 41, 3, 7, 66, 12]
    one = model.open()
    single = []
    for token in tokens:
        single.append(model.forward([Rows.chain(one, [token])])[0])
        model.commit(one, [0])
    expected = torch.stack(single)
    two, three = model.open(), model.open()
    chain = model.forward([Rows.chain(two, tokens[:5])])
    model.commit(two, range(5))
    tree = Rows(two, [9, tokens[5], 4, tokens[6], tokens[7]], [ROOT, ROOT, 1, 1, 3])
    beside = model.forward([tree, Rows.chain(three, tokens[:3])])
    found = torch.cat([chain, beside[[1, 3, 4]], beside[5:]])
    assert torch.equal(found, torch.cat([expected, expected[:3]]))


def test_speculation_says_what_plain_decoding_in_fp8_says() -> None:
    """The draft model is rounded as well; greedy and sampled."""

    def answers(engine: Engine) -> list[list[int]]:
        asked = [
            request(i, [5 + i, 9, 30], SamplingParams(temperature=(0.0, 0.9)[i % 2], seed=i, max_tokens=9))
            for i in range(2)
        ]
        for each in asked:
            engine.add(each)
        while not all(each.finish_reason for each in asked):
            engine.step()
        assert len({token for each in asked for token in each.tokens}) > 6
        assert max(max(each.tokens) for each in asked) < VOCAB
        accepted.append(sum(each.accepted for each in asked))
        return [list(each.tokens) for each in asked]

    accepted: list[int] = []
    plain = answers(Engine(in_fp8(), NoDrafter(), FixedLength(0)))
    assert answers(Engine(in_fp8(), ModelDrafter(in_fp8(DRAFT)), FixedLength(3))) == plain
    assert accepted[0] == 0
    assert accepted[1] > 0
