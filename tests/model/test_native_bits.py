"""`--dtype native`: matrices stay as a GGUF file quantised them, and inputs are int8."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import save_file
from tiny_gguf import blocks, bpe_metadata, write_gguf
from tiny_head import config_of, random_head

from outrider import LLM, InvalidRequest, SamplingParams
from outrider.core.model import Rows
from outrider.errors import ModelError
from outrider.models import load, memory
from outrider.models.architecture import Architecture
from outrider.models.backend import Placement
from outrider.models.checkpoints.checkpoint import open_checkpoint
from outrider.models.checkpoints.gguf_file import GGUFFile
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.checkpoints.safetensors_folder import SafetensorsFolder
from outrider.models.head.load import place_head
from outrider.models.load import load_model, placement
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.library import kernels_here
from outrider.models.native.packing import Packer
from outrider.models.precision import BF16, FP32, INT8, NATIVE, Precision
from outrider.models.stored import KINDS
from outrider.models.weights import load_weights

HIDDEN, HEADS, HEAD, LAYERS, VOCAB = 256, 16, 16, 2, 300
MATRICES = {
    # One head of keys and values: each a single panel, two of them in one pair.
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (HEAD, HIDDEN),
    "attn_v": (HEAD, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (512, HIDDEN),
    "ffn_up": (512, HIDDEN),
    "ffn_down": (HIDDEN, 512),
}
QUANTISED = tuple(kind for kind in KINDS if kind.startswith("Q"))
MIXED = {
    "attn_q": "Q4_K",
    "attn_k": "F32",
    "attn_v": "Q6_K",
    "attn_output": "Q5_1",
    "ffn_gate": "Q5_0",
    "ffn_up": "F16",
    "ffn_down": "BF16",
    "token_embd": "Q8_0",
    "output": "Q5_K",
}


def write(path: Path, kinds: str | Mapping[str, str], arch: str = "llama", **options: Any) -> Path:
    """A model whose matrices are of these kinds. `mlp`, `vocab`: other sizes; `tied`: no output matrix; `biased`."""
    mlp, vocab = options.get("mlp", 512), options.get("vocab", VOCAB)
    sizes = {**MATRICES, "ffn_gate": (mlp, HIDDEN), "ffn_up": (mlp, HIDDEN), "ffn_down": (HIDDEN, mlp)}
    rng = np.random.default_rng(5)
    tensors: dict[str, Any] = {"output_norm.weight": rng.standard_normal(HIDDEN, np.float32)}

    def add(name: str, shape: tuple[int, int]) -> None:
        kind = kinds if isinstance(kinds, str) else kinds[name.split(".")[-2]]
        if kind.endswith("_K") and shape[1] % 256:
            kind = "Q5_0"  # as llama.cpp does
        size = 0.005 if kind == "Q6_K" else 0.05  # random steps are large there
        tensors[name] = blocks(kind, *shape, size, len(tensors)), GGMLQuantizationType[kind]

    add("token_embd.weight", (vocab, HIDDEN))
    if not options.get("tied"):
        add("output.weight", (vocab, HIDDEN))
    for i in range(LAYERS):
        for part, shape in sizes.items():
            add(f"blk.{i}.{part}.weight", shape)
            if options.get("biased") and part in ("attn_q", "attn_k", "attn_v"):
                tensors[f"blk.{i}.{part}.bias"] = rng.standard_normal(shape[0], np.float32)
        for norm in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{i}.{norm}.weight"] = rng.standard_normal(HIDDEN, np.float32)
    described = {
        "block_count": LAYERS,
        "context_length": 512,
        "embedding_length": HIDDEN,
        "feed_forward_length": mlp,
        "attention.head_count": HEADS,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    write_gguf(path, arch, {**{f"{arch}.{key}": value for key, value in described.items()}, **bpe_metadata()}, tensors)
    return path


def decoder(path: Path, precision: Precision, threads: int = 1, kernels: str | None = None) -> NativeDecoder:
    checkpoint = open_checkpoint(str(path), SilentProgress())
    tensors = checkpoint.stored() if precision.stored else checkpoint.tensors(torch.float32)
    assert tensors is not None
    architecture = Architecture.from_config(checkpoint.config)
    size = {"max_batch": 1, "max_context": 256, "threads": threads}
    return NativeDecoder.load(architecture, tensors, precision, kernels=kernels, **size)


def logits(model: NativeDecoder) -> torch.Tensor:
    """Of passes of 1, 3, 8 and 140 rows."""
    slot, found = model.open(), []
    for start, count in ((0, 1), (1, 3), (4, 8), (12, 140)):
        ids = [(7 * i) % VOCAB for i in range(start, start + count)]
        found.append(model.forward([Rows.chain(slot, ids)]).clone())
        model.commit(slot, range(count))
    return torch.cat(found)


def check(path: Path) -> None:
    """No further from fp32 of the same file than int8, whose inputs are rounded alike; the same with any number of
    threads."""
    wide, rounded = logits(decoder(path, FP32)), logits(decoder(path, INT8))
    assert wide.isfinite().all()
    for kernels in kernels_here():
        found = logits(decoder(path, NATIVE, 1, kernels))
        assert float((found - wide).norm()) < 1.2 * float((rounded - wide).norm()) < 0.25 * float(wide.norm())
        assert torch.equal(logits(decoder(path, NATIVE, 3, kernels)), found)


@pytest.mark.parametrize("kind", QUANTISED)
def test_every_kind_is_near_fp32(kind: str, tmp_path: Path) -> None:
    check(write(tmp_path / "model.gguf", kind))


@pytest.mark.parametrize("kind", ["Q4_0", "Q6_K"])
def test_embedding_that_is_the_output_matrix_too(kind: str, tmp_path: Path) -> None:
    check(write(tmp_path / "model.gguf", kind, tied=True))


@pytest.mark.parametrize("arch", ["llama", "qwen2", "gemma"])
def test_kinds_mixed_within_a_matrix(arch: str, tmp_path: Path) -> None:
    """Parts of one product (queries, keys, values; gate and up) stored otherwise, and not only as quantised."""
    check(write(tmp_path / "model.gguf", MIXED, arch, tied=arch == "gemma", biased=arch == "qwen2"))


def test_rows_in_any_company(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", MIXED)
    together = logits(decoder(path, NATIVE))
    model = decoder(path, NATIVE)
    slot = model.open()
    for i, expected in enumerate(together[:60]):
        assert torch.equal(model.forward([Rows.chain(slot, [(7 * i) % VOCAB])])[0], expected)
        model.commit(slot, [0])


def test_widths_that_large_blocks_do_not_divide(tmp_path: Path) -> None:
    """Of K files such matrices are in small blocks; 32 * 11 inputs are no whole number of spans either."""
    path = write(tmp_path / "model.gguf", "Q4_K", mlp=352)
    assert {info.type_name for info in GGUFFile.open(path).tensors.values()} == {"F32", "Q4_K", "Q5_0"}
    check(path)


@pytest.mark.parametrize("kind", QUANTISED)
def test_weights_take_the_memory_of_the_file(kind: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write(tmp_path / "model.gguf", kind)), SilentProgress())
    tensors, packer = checkpoint.stored(), Packer(stored=True)
    assert tensors is not None
    architecture = Architecture.from_config(checkpoint.config)
    weights = load_weights(architecture, tensors, torch.float32, torch.device("cpu"), packer.layer)
    matrices = [
        matrix
        for layer in weights.layers
        for matrix in (layer.qkv, layer.o, *(part for mlp in layer.mlps for part in (mlp.gate_up, mlp.down)))
    ]
    strips = [strip for matrix in matrices for strip in matrix.strips]
    strips.append(packer.strip(weights.stored_head[0], HIDDEN))
    assert all(matrix.data is None for matrix in matrices)
    infos = GGUFFile.open(checkpoint.path).tensors
    file = sum(info.nbytes for name, info in infos.items() if name != "token_embd.weight")
    assert sum(strip.data.nbytes for strip in strips) <= 1.04 * file  # scales of large blocks in whole bytes


@pytest.mark.slow
def test_text_is_the_same_with_any_drafter(tmp_path: Path) -> None:
    path, draft = write(tmp_path / "model.gguf", MIXED), write(tmp_path / "draft.gguf", "F16")
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    sampled = SamplingParams(max_tokens=40, temperature=0.9, seed=3, ignore_eos=True)
    prompts = ["the the the", "hello in the hall"]

    def texts(drafter: str) -> list[list[int]]:
        llm = LLM(path, dtype="native", device="cpu", drafter=drafter, draft_length=4, threads=2, max_context=256)
        assert llm.place.precision is NATIVE
        return [done.token_ids for each in (params, sampled) for done in llm.generate(prompts, each)]

    expected = texts("none")
    assert len({tuple(tokens) for tokens in expected}) > 1
    for drafter in ("suffix", f"model:{path}", f"model:{draft}"):
        assert texts(drafter) == expected


def test_head_beside_it_looks_up_its_embedding(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", MIXED)
    found = []
    for precision in (FP32, NATIVE):
        target = decoder(path, precision)
        head = place_head(random_head(config_of(target.architecture, draft_vocab=64, aux_hidden_layers=(0,))), target)
        target.forward([Rows.chain(target.open(), [5, 6, 7])])  # layer 0: the embeddings themselves
        found.append(head.forward([Rows.chain(head.open(), [6, 7, 8])], features=target.features).logits.clone())
    assert torch.equal(*found)


def test_costs_are_measured_on_a_slice_of_a_large_vocabulary(tmp_path: Path) -> None:
    model = decoder(write(tmp_path / "model.gguf", "Q4_0", vocab=8230), NATIVE)
    assert all(model.measure(rows, 10) > 0 for rows in (1, 2, 3, 4, 5, 6, 7, 8, 9))


def place(precision: Precision, device: str = "cpu") -> Placement:
    return Placement(torch.device(device), precision, None, 1, 1, 64)


def test_file_that_is_not_quantised(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write(tmp_path / "model.gguf", "F16")), SilentProgress())
    with pytest.raises(InvalidRequest, match=r"dtype: native .* not quantised; use bf16 or fp32"):
        load_model(checkpoint, place(NATIVE))


def test_folder_of_safetensors(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write(tmp_path / "model.gguf", "F16")), SilentProgress())
    save_file(dict(checkpoint.tensors(torch.bfloat16)), tmp_path / "model.safetensors")
    folder = replace(checkpoint, weights=SafetensorsFolder(tmp_path, checkpoint.config))
    with pytest.raises(InvalidRequest, match=r"dtype: native .* not quantised; use bf16 or fp32"):
        load_model(folder, place(NATIVE))


def test_gpu(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write(tmp_path / "model.gguf", "Q4_0")), SilentProgress())
    with pytest.raises(InvalidRequest, match=r"dtype: native weights need the compiled CPU decoder, .* GPU; use bf16"):
        load_model(checkpoint, place(NATIVE, "cuda"))


def test_without_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.models.native.stack.library", lambda: None)
    checkpoint = open_checkpoint(str(write(tmp_path / "model.gguf", "Q4_0")), SilentProgress())
    with pytest.raises(InvalidRequest, match=r"dtype: native .* install a C compiler .* use bf16"):
        load_model(checkpoint, place(NATIVE))


def test_file_that_is_cut_after_it_was_opened(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", "Q4_0")
    checkpoint = open_checkpoint(str(path), SilentProgress())
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelError, match="became shorter"):
        load_model(checkpoint, place(NATIVE))


@pytest.mark.parametrize(
    ("kind", "free", "expected"), [("Q4_0", 1, NATIVE), ("Q4_0", 1 << 40, BF16), ("Q4_0", None, BF16), ("F16", 1, BF16)]
)
def test_auto_is_native_where_bf16_would_not_fit(
    kind: str,
    free: int | None,
    expected: Precision,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(load, "available", lambda: free)
    path = write(tmp_path / "model.gguf", kind)
    with caplog.at_level(logging.WARNING, "outrider"):
        llm = LLM(path, device="cpu", drafter="none", max_context=64)
    assert llm.place.precision is expected
    notes = [record.message for record in caplog.records if "--dtype native" in record.message]
    assert len(notes) == (expected is NATIVE)


@pytest.mark.parametrize(
    ("kind", "dtype", "told"), [("Q4_0", "auto", True), ("Q4_0", "bf16", False), ("F16", "auto", False)]
)
def test_who_has_a_large_quantised_file_is_told_of_native(
    kind: str, dtype: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(load, "available", lambda: None)
    path = write(tmp_path / "model.gguf", kind)
    with caplog.at_level(logging.WARNING, "outrider"):
        LLM(path, device="cpu", dtype=dtype, drafter="none", max_context=64)
        assert not [record for record in caplog.records if "--dtype native" in record.message], (
            "small ones are not worth it"
        )
        monkeypatch.setattr(load, "_LARGE", 0.0)
        LLM(path, device="cpu", dtype=dtype, drafter="none", max_context=64)
    assert any("--dtype native leaves them" in record.message for record in caplog.records) == told


def test_free_memory_is_known_here() -> None:
    free = memory.available()
    assert free is None or 0 < free < 1 << 50
    assert (
        placement(device="cpu", dtype="native", bitwise=None, threads=None, max_batch=1, max_context=None).precision
        is NATIVE
    )
