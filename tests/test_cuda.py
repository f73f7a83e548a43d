"""The same promises on a GPU; skipped where there is none."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from prompts import PROMPTS

from outrider import LLM, SamplingParams
from outrider.models.architecture import Architecture
from outrider.models.checkpoints.checkpoint import Checkpoint
from outrider.models.torch_decoder import TorchDecoder
from outrider.sampling.noise import Key, gumbel_rows, integers
from outrider.types import ROOT, Rows

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_noise_has_the_same_integers_on_every_device() -> None:
    tokens = torch.arange(50_000, dtype=torch.int32)
    keys = [Key(2**63 + 5, 1, position) for position in (0, 7, 10**6)]
    assert torch.equal(integers(keys, tokens.cuda()).cpu(), integers(keys, tokens))
    there, here = gumbel_rows(keys, 50_000, "cuda").cpu(), gumbel_rows(keys, 50_000, "cpu")
    torch.testing.assert_close(there, here, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_bitwise_rows(default_checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    """`torch.equal`: one token a pass against chains, trees and batches."""
    architecture = Architecture.from_config(default_checkpoint.config)
    tensors, gpu = default_checkpoint.tensors(dtype), torch.device("cuda")
    decoder = TorchDecoder.load(architecture, tensors, dtype, gpu, max_batch=3, max_context=256, bitwise=True)
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


@pytest.mark.parametrize(("dtype", "bitwise"), [("fp32", False), ("bf16", True)])
@pytest.mark.parametrize("drafter", ["suffix", "model"])
def test_same_tokens_as_plain(dtype: str, bitwise: bool, drafter: str, truncated_model_dir: Path) -> None:
    spec = f"model:{truncated_model_dir}" if drafter == "model" else drafter
    llm = LLM(drafter=spec, draft_length=6, dtype=dtype, device="cuda", bitwise=bitwise, max_context=256)
    prompts = PROMPTS[:20]
    params = [
        SamplingParams(
            temperature=(0, 0.8, 1.2)[i % 3], top_p=(1.0, 0.9)[i % 2], seed=i, max_tokens=40, ignore_eos=True
        )
        for i in range(len(prompts))
    ]
    fast = llm.generate(prompts, params)
    plain = llm.generate(prompts, params, speculate=False)
    assert [c.token_ids for c in fast] == [c.token_ids for c in plain]
    assert sum(c.accepted for c in fast) > 30


def test_bf16_runs_without_bitwise() -> None:
    llm = LLM(drafter="suffix", dtype="bf16", device="cuda", max_context=256)
    done = llm.generate(PROMPTS[:8], SamplingParams(temperature=0, max_tokens=32))
    assert all(c.token_ids for c in done)
