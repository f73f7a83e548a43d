"""Layers of experts in the compiled decoder. Logits against transformers' are in test_decoder.py and
test_gguf_families.py; here: number formats, rows that share experts, and what costs are measured on."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from tiny_gguf import blocks, bpe_metadata, write_gguf
from tiny_models import decoder_of, logits_of, reference

from outrider import LLM, SamplingParams
from outrider.core.model import Rows
from outrider.models.architecture import Architecture
from outrider.models.checkpoints.checkpoint import open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.library import kernels_here
from outrider.models.native.stack import unsupported_reason
from outrider.models.precision import BF16, FP32, INT8, NATIVE, Precision

MODELS = ("mixtral", "qwen3-moe", "qwen3-moe-normalised")


def native(name: str, precision: Precision, kernels: str | None = None, threads: int = 1) -> NativeDecoder:
    found = decoder_of(reference(name), "native", precision, kernels, threads)
    assert isinstance(found, NativeDecoder)
    return found


@pytest.mark.parametrize("kernels", kernels_here())
@pytest.mark.parametrize("precision", [FP32, BF16, INT8], ids=lambda p: p.name)
@pytest.mark.parametrize("name", MODELS)
def test_rows_are_each_their_own(name: str, precision: Precision, kernels: str) -> None:
    """Bit for bit, in any company and with any number of threads (which share rows out alike in every kernel: they wait
    for each other busily, and tests run side by side)."""
    tokens = random.Random(4).choices(range(97), k=60)
    alone = native(name, precision, kernels)
    slot, rows = alone.open(), []
    for token in tokens:
        rows.append(alone.forward([Rows.chain(slot, [token])]).clone())
        alone.commit(slot, [0])
    for threads in (1, 3) if kernels == kernels_here()[-1] else (1,):
        several = native(name, precision, kernels, threads)
        slot = several.open()
        for start, count in ((0, 2), (2, 8), (10, 9), (19, 41)):
            found = several.forward([Rows.chain(slot, tokens[start : start + count])])
            several.commit(slot, range(count))
            assert torch.equal(found, torch.cat(rows[start : start + count]))


@pytest.mark.parametrize("precision", [BF16, INT8], ids=lambda p: p.name)
@pytest.mark.parametrize("name", MODELS)
def test_rounding_changes_little(name: str, precision: Precision) -> None:
    """In most rows: where two experts score alike, rounding decides which is chosen."""
    tokens = random.Random(3).choices(range(97), k=40)
    exact = logits_of(reference(name), tokens)
    decoder = native(name, precision)
    ours = decoder.forward([Rows.chain(decoder.open(), tokens)])
    assert float(((ours - exact).std(1) / exact.std(1)).median()) < 0.1


@pytest.mark.parametrize("precision", [FP32, BF16, INT8], ids=lambda p: p.name)
def test_equal_experts_are_one_mlp(precision: Precision) -> None:
    """Chosen one at a time and with a share of 1, they give a dense model's bits."""
    dense, sparse = reference("qwen3"), reference("qwen3-moe-normalised")
    sparse.config.num_experts_per_tok, sparse.config.moe_intermediate_size = 1, 80
    state = dict(dense.state_dict())
    weights = {name: state.pop(name) for name in list(state) if ".mlp." in name}
    for i in range(3):
        part = f"model.layers.{i}.mlp."
        gate, up, down = (weights[f"{part}{name}_proj.weight"] for name in ("gate", "up", "down"))
        state[f"{part}gate.weight"] = torch.randn(40, 48, generator=torch.Generator().manual_seed(i))
        state[f"{part}experts.gate_up_proj"] = torch.cat([gate, up]).expand(40, -1, -1)
        state[f"{part}experts.down_proj"] = down.expand(40, -1, -1)
    size: dict[str, Any] = {"max_batch": 1, "max_context": 64, "threads": 2}
    found = []
    for config, tensors in ((dense.config, dense.state_dict()), (sparse.config, state)):
        given = ((name, tensor.to(precision.source)) for name, tensor in tensors.items())
        decoder = NativeDecoder.load(Architecture.from_config(config.to_dict()), given, precision, **size)
        found.append(decoder.forward([Rows.chain(decoder.open(), list(range(0, 90, 5)))]).clone())
    assert torch.equal(*found)


def quantised(path: Path) -> Path:
    """Experts of a Qwen3-MoE in blocks of several kinds."""
    hidden, mlp, experts, layers, vocab = 256, 256, 6, 2, 300
    rng = np.random.default_rng(1)
    tensors: dict[str, Any] = {"output_norm.weight": rng.standard_normal(hidden, np.float32)}

    def add(name: str, kind: str, rows: int, width: int, count: int = 0) -> None:
        own = blocks(kind, rows * max(1, count), width, 0.05, len(tensors))
        shape = (count, rows, -1) if count else (rows, -1)
        tensors[f"{name}.weight"] = own.reshape(shape), GGMLQuantizationType[kind]

    add("token_embd", "Q8_0", vocab, hidden)
    add("output", "Q6_K", vocab, hidden)
    for i in range(layers):
        at = f"blk.{i}."
        for norm in ("attn_norm", "ffn_norm"):
            tensors[f"{at}{norm}.weight"] = rng.standard_normal(hidden, np.float32)
        for norm in ("attn_q_norm", "attn_k_norm"):
            tensors[f"{at}{norm}.weight"] = rng.standard_normal(32, np.float32)
        add(f"{at}attn_q", "Q4_0", hidden, hidden)
        add(f"{at}attn_k", "Q5_0", 64, hidden)
        add(f"{at}attn_v", "Q8_0", 64, hidden)
        add(f"{at}attn_output", "Q4_K", hidden, hidden)
        tensors[f"{at}ffn_gate_inp.weight"] = rng.standard_normal((experts, hidden), np.float32) * 0.05
        add(f"{at}ffn_gate_exps", "Q4_K", mlp, hidden, experts)
        add(f"{at}ffn_up_exps", "Q5_1", mlp, hidden, experts)
        add(f"{at}ffn_down_exps", "Q6_K", hidden, mlp, experts)
    shape = {
        "block_count": layers,
        "context_length": 256,
        "embedding_length": hidden,
        "feed_forward_length": mlp,
        "expert_count": experts,
        "expert_used_count": 2,
        "expert_feed_forward_length": mlp,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    write_gguf(path, "qwen3moe", {f"qwen3moe.{key}": value for key, value in shape.items()} | bpe_metadata(), tensors)
    return path


def test_experts_of_a_quantised_file_stay_as_they_are(tmp_path: Path) -> None:
    """`--dtype native`: near fp32, a row's bits its own, and the text with drafts as without."""
    path = quantised(tmp_path / "model.gguf")
    checkpoint = open_checkpoint(str(path), SilentProgress())
    a = Architecture.from_config(checkpoint.config)
    tokens, found = list(range(0, 300, 5)), []
    for precision, tensors in ((FP32, checkpoint.tensors(torch.float32)), (NATIVE, checkpoint.stored())):
        assert tensors is not None
        decoder = NativeDecoder.load(a, tensors, precision, max_batch=1, max_context=64, threads=2)
        found.append(decoder.forward([Rows.chain(decoder.open(), tokens)]).clone())
    exact, ours = found
    assert float(((ours - exact).std(1) / exact.std(1)).median()) < 0.1
    assert all(strip.kind > 0 for strip in decoder._layers[1].experts[5].gate_up.strips[:2])
    decoder.rollback(0, 0)
    for token, row in zip(tokens, ours, strict=True):
        assert torch.equal(decoder.forward([Rows.chain(0, [token])])[0], row)
        decoder.commit(0, [0])
    params = SamplingParams(max_tokens=24, temperature=0.7, seed=3, ignore_eos=True)
    llm = LLM(str(path), dtype="native", drafter="suffix", draft_length=4, threads=1, max_context=128)
    drafted, plain = (llm.generate([[5, 6, 7, 8] * 6], params, speculate=speculate)[0] for speculate in (True, False))
    assert drafted.token_ids == plain.token_ids
    assert drafted.drafted > 0


def test_costs_are_measured_with_rows_that_choose_other_experts() -> None:
    """As rows of a text do; one row chooses others in the next measurement, too."""
    decoder = native("qwen3-moe-normalised", BF16)
    routing = decoder._model.routing.contents

    def chosen(rows: int) -> set[int]:
        decoder.measure(rows, 8)
        return set((ctypes.c_int32 * (rows * routing.used)).from_address(routing.chosen))

    assert len(chosen(16)) > 2 * routing.used
    assert len(chosen(1) | chosen(1) | chosen(1)) > routing.used


def test_more_experts_than_the_kernels_have_room_for_are_declined() -> None:
    shape = reference("qwen3-moe").config.to_dict()
    assert unsupported_reason(Architecture.from_config(shape), INT8) is None
    for much in ({"num_experts": 513}, {"num_experts": 64, "num_experts_per_tok": 17}):
        a = Architecture.from_config({**shape, "num_local_experts": None, **much})
        assert "experts are more" in str(unsupported_reason(a, FP32))
