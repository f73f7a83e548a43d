"""Number formats: how they are spelled, and which one is taken where nobody asks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch
from tiny_gguf import bpe_metadata, write_hf_model
from transformers import AutoConfig, AutoModelForCausalLM

import outrider
from outrider import LLM, InvalidRequest
from outrider.bench.names import parse, reference
from outrider.cli.options import Dtype
from outrider.models.checkpoints.checkpoint import open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.cpu import has_bf16
from outrider.models.dtypes import DTYPES, LONG, short_name
from outrider.models.load import automatic, beside, placement, too_many_threads
from outrider.models.precision import BF16, FP16, FP32, INT8, PRECISIONS
from outrider.models.torch_decoder import TorchDecoder
from outrider.parts import TargetParts


@pytest.mark.parametrize(
    ("asked", "precision"),
    [
        *((name, BF16) for name in ("bf16", "bfloat16", torch.bfloat16)),
        *((name, FP16) for name in ("fp16", "float16", torch.float16, torch.half)),
        *((name, FP32) for name in ("fp32", "float32", torch.float32)),
        *((name, INT8) for name in ("int8", torch.int8)),
    ],
)
def test_both_spellings_and_torchs_own(asked: str | torch.dtype, precision: object) -> None:
    place = placement(device="cpu", dtype=asked, bitwise=None, threads=None, max_batch=1, max_context=None)
    assert place.precision is precision


@pytest.mark.parametrize("asked", ["float", "fp4", "", torch.float64, None])
def test_unknown_format_is_refused_with_the_known_ones(asked: object) -> None:
    with pytest.raises(InvalidRequest, match=r"auto, bf16, fp16, fp32, int8, fp8.*bfloat16"):
        short_name(asked)


def test_every_list_of_formats_is_the_same() -> None:
    assert tuple(PRECISIONS) == DTYPES
    assert set(get_args(Dtype)) == {"auto", *DTYPES, *LONG}


def test_bench_arms_in_either_spelling_are_one_format() -> None:
    assert parse("plain@float32").dtype == "fp32"
    assert reference("suffix@float32", ["plain@fp32", "plain"]) == "plain@fp32"


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"architecture": "x86_64", "amx_bf16": True, "avx512_f": True}, True),
        ({"architecture": "x86_64", "avx512_bf16": True}, True),
        ({"architecture": "x86_64", "avx512_f": True, "amx_bf16": False, "avx512_bf16": False}, False),
        ({"architecture": "arm64", "bf16": True}, True),
        ({"architecture": "arm64", "neon": True, "fp16_arith": True, "dot": True, "bf16": False}, False),
        ({}, False),
    ],
)
def test_bf16_instructions(capabilities: dict[str, object], expected: bool) -> None:
    assert has_bf16(capabilities) is expected


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="needs /proc")
def test_bf16_instructions_of_this_machine() -> None:
    """As the kernel lists them: `flags` on x86, `Features` on ARM."""
    words = set(Path("/proc/cpuinfo").read_text().split())
    assert has_bf16() == bool(words & {"amx_bf16", "avx512_bf16", "bf16", "svebf16"})


@pytest.mark.parametrize(
    ("device", "kernels", "bf16", "expected"),
    [
        ("cpu", True, False, BF16),
        ("cpu", True, True, BF16),
        ("cpu", False, True, BF16),
        ("cpu", False, False, FP32),
        ("cuda", False, False, BF16),
    ],
)
def test_format_nobody_asked_for(device: str, kernels: bool, bf16: bool, expected: object) -> None:
    assert automatic(torch.device(device), kernels=kernels, bf16=bf16) is expected


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "model.gguf"
    config = AutoConfig.for_model(
        "qwen2", vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    write_hf_model(path, AutoModelForCausalLM.from_config(config), bpe_metadata())
    return path


@pytest.fixture(scope="module")
def without_kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which Outrider is as it is after an installation without a C compiler."""
    source, folder = Path(outrider.__file__).parent, tmp_path_factory.mktemp("bare")
    for file in source.rglob("*"):
        compiled = file.name.startswith(("_kernels.", "_sampler.", "_lookup."))
        if file.is_file() and not compiled and "__pycache__" not in file.parts:
            link = folder / "outrider" / file.relative_to(source)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)
    return {**os.environ, "PYTHONPATH": str(folder)}


CHILD = """
import sys
from outrider import LLM, SamplingParams
llm = LLM(sys.argv[1], drafter="none")
print(llm.place.precision.name, llm.model.dtype, type(llm.model).__name__)
"""


def test_without_kernels_the_format_suits_the_cpu_and_a_line_says_so(
    small: Path, without_kernels: dict[str, str]
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(small)], env=without_kernels, capture_output=True, text=True, check=True
    )
    name, dtype = ("bf16", torch.bfloat16) if has_bf16() else ("fp32", torch.float32)
    assert run.stdout.split() == [name, str(dtype), "TorchDecoder"]
    (line,) = run.stderr.splitlines()
    assert "kernels are missing" in line
    assert f"in {name}; install a C compiler" in line


def test_command_line_says_it_once_and_runs(small: Path, without_kernels: dict[str, str]) -> None:
    arguments = ["generate", "hello", "--raw", "-m", str(small), "--max-tokens", "3", "--dtype", "float32", "--json"]
    run = subprocess.run(
        [sys.executable, "-c", "from outrider.cli.main import main; main()", *arguments],
        env=without_kernels, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert '"token_ids"' in run.stdout
    assert [line[:10] for line in run.stderr.splitlines() if "C compiler" in line] == ["note: the "]


def test_model_our_kernels_do_not_take_avoids_slow_bf16(small: Path, tmp_path: Path) -> None:
    """Heads of 8 numbers do not suit the compiled decoder, so PyTorch runs the model."""
    config = AutoConfig.for_model(
        "qwen2", vocab_size=300, hidden_size=32, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    path = tmp_path / "model.gguf"
    write_hf_model(path, AutoModelForCausalLM.from_config(config), bpe_metadata())
    llm, wanted = LLM(str(path), drafter="none", device="cpu"), BF16 if has_bf16() else FP32
    assert llm.place.precision is wanted
    assert isinstance(llm.model, TorchDecoder)
    assert llm.model.dtype == wanted.compute
    assert LLM(str(small), drafter="none", device="cpu").place.precision is BF16


def test_threads_are_asked_for_first_and_set_when_a_model_is_loaded() -> None:
    before = torch.get_num_threads()
    place = placement(device="cpu", dtype="bf16", bitwise=None, threads=before + 1, max_batch=1, max_context=64)
    assert (place.threads, torch.get_num_threads()) == (before + 1, before)
    try:
        TargetParts.load("smollm2-135m", place, False, SilentProgress())
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_more_threads_than_cores_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    told = [
        too_many_threads(
            placement(device="cpu", dtype="bf16", bitwise=None, threads=threads, max_batch=1, max_context=64)
        )
        for threads in (1, 2, 3)
    ]
    assert told == [None, None, "3 threads take turns on 2 cores, slower than as many threads as cores"]


@pytest.mark.parametrize(
    ("dtype", "device", "width", "expected"),
    [
        ("bf16", "cpu", 64, INT8),
        ("bf16", "cpu", 24, BF16),  # a width that the kernels do not have
        ("native", "cpu", 64, INT8),  # the draft model is not quantised
        ("int8", "cpu", 64, INT8),
        ("fp32", "cpu", 64, FP32),
        ("fp16", "cpu", 64, FP16),
    ],
)
def test_a_draft_model_runs_in_eight_bits_beside_one_in_sixteen(
    dtype: str, device: str, width: int, expected: object, tmp_path: Path
) -> None:
    config = AutoConfig.for_model(
        "llama",
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=300,
    )
    path = tmp_path / "draft.gguf"
    write_hf_model(path, AutoModelForCausalLM.from_config(config), bpe_metadata())
    place = placement(device=device, dtype=dtype, bitwise=None, threads=None, max_batch=1, max_context=None)
    assert beside(place, open_checkpoint(str(path), SilentProgress())).precision is expected
