"""Logits from 4-bit weights, the likeliest again from int8: the kernels against the same arithmetic in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from integers import narrowed
from tiny_head import config_of, random_head
from tiny_models import SMALL
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from outrider.core.model import HeadOutput, NoiseKey, Rows
from outrider.models.architecture import Architecture
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.load import place_head
from outrider.models.head.weights import HeadWeights
from outrider.models.native import head as native_head
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.head import NativeHead
from outrider.models.native.library import kernels_here
from outrider.models.native.screen import coded
from outrider.models.precision import FP32, blocks
from outrider.sampling.noise import Key, gumbel_at, row_key

DRAFT_VOCAB = 2900  # not whole pairs of panels
PAIR, SCREENED = 32, 32
FEATURES = torch.randn(40, 144, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SMALL | {"vocab_size": 5000})).float()


def target_of(model: Any, kernels: str | None = None, threads: int = 2) -> NativeDecoder:
    architecture = Architecture.from_config(model.config.to_dict())
    tensors = ((name, tensor.float()) for name, tensor in model.state_dict().items())
    return NativeDecoder.load(
        architecture, tensors, FP32, max_batch=3, max_context=128, threads=threads, kernels=kernels
    )


@pytest.fixture(scope="module")
def checkpoint(model: Any) -> HeadCheckpoint:
    """Like a trained vocabulary: much is common to all rows, and a few inputs dwarf the others."""
    head = random_head(config_of(Architecture.from_config(model.config.to_dict()), draft_vocab=DRAFT_VOCAB), seed=3)
    weight = head.tensors["lm_head.weight"]
    weight += torch.randn(48, generator=torch.Generator().manual_seed(4))
    weight[:, [5, 17]] *= 6
    return head


def outcome(head: NativeHead, count: int) -> HeadOutput:
    slot = head.open()
    output = head.forward([Rows.chain(slot, range(count))], features=FEATURES[:count])
    head.close(slot)
    return output


def placed(checkpoint: HeadCheckpoint, target: NativeDecoder) -> NativeHead:
    head = place_head(checkpoint, target)
    assert isinstance(head, NativeHead)
    return head


def screened_logits(checkpoint: HeadCheckpoint, states: Tensor) -> Tensor:
    weights = HeadWeights.of(checkpoint.config, checkpoint.tensors, states.device, None)
    assert weights.lm_head.scales is not None
    narrow = coded(weights.lm_head.values, weights.lm_head.scales)
    eps = checkpoint.config.architecture.norm_eps
    x = states * torch.rsqrt(states.square().mean(1, keepdim=True) + eps) * weights.norm
    return (
        narrowed(x * narrow.stretch) @ ((narrow.wide() - narrow.mean) / narrow.stretch).T + (x @ narrow.mean)[:, None]
    )


@pytest.mark.parametrize("kernels", kernels_here())
@pytest.mark.parametrize("count", [1, 3, 8, 9, 40])
def test_the_likeliest_are_those_of_int8_and_the_others_near(
    model: Any, checkpoint: HeadCheckpoint, monkeypatch: pytest.MonkeyPatch, kernels: str, count: int
) -> None:
    found = outcome(placed(checkpoint, target_of(model, kernels)), count)
    monkeypatch.setattr(native_head, "LEAST_SCREENED", DRAFT_VOCAB + 1)
    whole = outcome(placed(checkpoint, target_of(model, kernels)), count)
    assert torch.equal(found.states, whole.states)
    expected = screened_logits(checkpoint, found.states)
    slack = 0.01 * float(expected.std())  # an input may round the other way; an error in a weight is ten times that
    padded = torch.nn.functional.pad(expected, (0, -DRAFT_VOCAB % PAIR), value=-torch.inf)
    largest = padded.view(count, -1, PAIR).amax(2)
    least = largest.topk(SCREENED).values[:, -1:]
    inside, outside = expected > least + slack, expected < least - slack
    assert int(inside.sum()) >= count * SCREENED // 2
    assert torch.equal(found.logits[inside], whole.logits[inside])
    torch.testing.assert_close(found.logits[outside], expected[outside], atol=slack, rtol=0)
    assert int((found.logits == whole.logits).sum(1).max()) < DRAFT_VOCAB // 8
    assert torch.equal(found.logits.argmax(1), whole.logits.argmax(1))


@pytest.mark.parametrize("kernels", kernels_here())
@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_bits_in_any_company(model: Any, checkpoint: HeadCheckpoint, kernels: str, threads: int) -> None:
    """Alone and among others, however many threads."""
    together = outcome(placed(checkpoint, target_of(model, kernels)), 40)
    head = placed(checkpoint, target_of(model, kernels, threads))
    for count in (1, 7, 8, 9, 40):
        found = outcome(head, count)
        assert torch.equal(found.logits, together.logits[:count])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ranking_is_what_these_logits_say(model: Any, checkpoint: HeadCheckpoint, temperature: float) -> None:
    head = placed(checkpoint, target_of(model))
    logits = outcome(head, 4).logits.double()
    keys = [NoiseKey(temperature, *row_key(1, 0, p)) if temperature else None for p in range(4)]
    ranked, _ = head.rank([Rows.chain(head.open(), range(4))], keys, 5, features=FEATURES[:4])
    for i, row in enumerate(logits):
        noisy = row + gumbel_at([Key(1, 0, i)], head.ids)[0] if temperature else row
        for scores, said in ((row, ranked[i].likely), (noisy, ranked[i].drawn)):
            best = scores.topk(5).indices
            assert [token for token, _ in said] == head.ids[best].tolist()
            torch.testing.assert_close(
                torch.tensor([p for _, p in said]).double(), row.softmax(0)[best], atol=1e-5, rtol=1e-4
            )


def test_four_bits_keep_what_tells_rows_apart() -> None:
    generator = torch.Generator().manual_seed(5)
    common, apart = torch.randn(70, generator=generator) * 3, torch.randn(1500, 70, generator=generator)
    apart[:, [3, 4]] *= 20
    apart[:, 8] = 0  # an input all rows share
    apart[11] = 0  # a row of nothing else
    wide = common + apart
    scales = wide.abs().amax(1) / 127
    narrow = coded((wide / scales[:, None]).round().to(torch.int8), scales)
    assert int(narrow.codes.max()) == 15
    error = (narrow.wide() - wide).square().mean(0) / apart.square().mean(0).clamp_min(1e-3)
    assert float(error[torch.arange(70) != 8].max()) < 0.02  # 20 dB is what sixteen levels can give; int8 adds little
    assert bool(torch.isfinite(narrow.wide()).all())


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 0.0])
def test_scales_that_are_no_numbers_are_coded_as_well(odd: float) -> None:
    """Whatever they then mean: loading a damaged head must not fail in here."""
    values = torch.randint(-127, 128, (40, 256), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    scales = torch.full((40, blocks(256)), 0.01)
    scales[3, 1] = odd
    assert coded(values, scales).codes.max() < 16
