"""The same promises on a GPU; skipped where there is none."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from prompts import PROMPTS

pytest.importorskip("triton")

from device_requests import host_engine

from outrider import LLM, SamplingParams
from outrider.bench.twin import twin_shape
from outrider.bench.twin_model import load_twin
from outrider.control.controller import FixedLength
from outrider.core.draft import ROOT
from outrider.core.model import Rows
from outrider.drafters.none import NoDrafter
from outrider.engine.device_executor import DeviceExecutor
from outrider.engine.engine import Engine
from outrider.engine.prepare import prepare
from outrider.llm import over_engine
from outrider.models.checkpoints.checkpoint import Checkpoint
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.load import load_model, placement
from outrider.models.torch_decoder import TorchDecoder
from outrider.sampling.noise import Key, gumbel_rows, integers

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_noise_has_the_same_integers_on_every_device() -> None:
    tokens = torch.arange(50_000, dtype=torch.int32)
    keys = [Key(2**63 + 5, 1, position) for position in (0, 7, 10**6)]
    assert torch.equal(integers(keys, tokens.cuda()).cpu(), integers(keys, tokens))
    there, here = gumbel_rows(keys, 50_000, "cuda").cpu(), gumbel_rows(keys, 50_000, "cpu")
    torch.testing.assert_close(there, here, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("dtype", "kind"), [("bf16", CudaDecoder), ("fp16", CudaDecoder), ("fp32", TorchDecoder)])
def test_bitwise_rows(default_checkpoint: Checkpoint, dtype: str, kind: type[CudaDecoder | TorchDecoder]) -> None:
    """`torch.equal`: one token a pass against chains, trees and batches."""
    place = placement(device="cuda", dtype=dtype, bitwise=True, threads=None, max_batch=3, max_context=256)
    decoder = load_model(default_checkpoint, place)
    assert isinstance(decoder, kind)
    tokens = random.Random(0).choices(range(1000, 40_000), k=150)
    one = decoder.open()
    single = []
    for token in tokens:
        single.append(decoder.forward([Rows.chain(one, [token])])[0])
        decoder.commit(one, [0])
    expected = torch.stack(single)
    for width in (2, 5, 16, 33, 150):
        slot = decoder.open()
        for start in range(0, 150, width):
            part = tokens[start : start + width]
            logits = decoder.forward([Rows.chain(slot, part)])
            decoder.commit(slot, range(len(part)))
            assert torch.equal(logits, expected[start : start + len(part)]), width
        decoder.close(slot)
    two, three = decoder.open(), decoder.open()
    for slot, length in ((two, 61), (three, 5)):
        decoder.forward([Rows.chain(slot, tokens[:length])])
        decoder.commit(slot, range(length))
    tree = Rows(two, [3, tokens[61], 4, tokens[62], 5, tokens[63]], [ROOT, ROOT, 1, 1, 3, 3])
    logits = decoder.forward([tree, Rows.chain(three, tokens[5:9])])
    assert torch.equal(logits[[1, 3, 5]], expected[61:64])
    assert torch.equal(logits[6:], expected[5:9])


def test_nothing_is_recorded_while_a_request_waits() -> None:
    """Batches of many sizes, long and short prompts, greedy and sampled, drafts of all lengths and none."""
    llm = LLM(dtype="bf16", device="cuda", max_batch=16, max_context=1024)
    texts = [*PROMPTS, " ".join(PROMPTS) * 3]
    for size in (1, 2, 3, 5, 9, 16):
        for temperature, top_p in ((0.0, 1.0), (0.8, 0.9)):
            params = [
                SamplingParams(temperature=temperature, top_p=top_p, seed=i, max_tokens=24 + 3 * i) for i in range(size)
            ]
            llm.generate([texts[i % len(texts)] for i in range(size)], params)
            llm.generate([texts[i % len(texts)] for i in range(size)], params, speculate=False)
    assert llm.engine.stats.late_recordings == 0


@pytest.mark.parametrize("drafter", ["none", "suffix", "model", "head", "head+suffix"])
def test_thousands_of_tokens_are_those_of_the_host(drafter: str, truncated_model_dir: Path) -> None:
    """Steps on the device, or drafts from the host, against one row at a time; greedy and sampled."""
    spec = f"model:{truncated_model_dir}" if drafter == "model" else drafter
    llm = LLM(drafter=spec, draft_length=6, dtype="bf16", device="cuda", max_batch=16, max_context=512)
    assert isinstance(llm.engine.executor, DeviceExecutor)
    host = over_engine(llm, host_engine(llm.model, NoDrafter(), FixedLength(0)))
    params = [
        SamplingParams(temperature=(0, 0.8, 1.2)[i % 3], top_k=0, top_p=1.0, seed=i, max_tokens=150, ignore_eos=True)
        for i in range(len(PROMPTS))
    ]
    fast = llm.generate(PROMPTS, params)
    expected = [c.token_ids for c in host.generate(PROMPTS, params)]
    assert [c.token_ids for c in fast] == expected
    assert [c.token_ids for c in llm.generate(PROMPTS, params, speculate=False)] == expected
    # What is looked up comes a step late there, and for a few requests at a time: that alone brings less.
    least = {"none": 0, "suffix": 100}.get(drafter, 300)
    assert sum(c.accepted for c in fast) >= least


def test_a_twin_drafts_exactly(default_checkpoint: Checkpoint) -> None:
    """On the GPU, in bf16: the same tokens with a drafter as without (its logits: tests/model/test_twin.py)."""
    llm = LLM(drafter="suffix", draft_length=8, dtype="bf16", device="cuda", max_context=256)
    place = placement(device="cuda", dtype="bf16", bitwise=None, threads=None, max_batch=4, max_context=256)
    model = load_twin(default_checkpoint, twin_shape("tiny"), place)
    engine = Engine(model, NoDrafter(), FixedLength(0))
    prepare(engine, SilentProgress())
    plain = over_engine(llm, engine)
    twin = plain.with_drafter("suffix", FixedLength(8))
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    fast, slow = (engine.generate(PROMPTS[:4], params) for engine in (twin, plain))
    assert [c.token_ids for c in fast] == [c.token_ids for c in slow]
