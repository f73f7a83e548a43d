"""Independent references: transformers' own `generate`, its logits on the default model, and its models behind ours."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from pace import Pace
from prompts import PROMPTS
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from outrider import LLM, InvalidRequest, ModelError, SamplingParams
from outrider.core.model import Rows
from outrider.models.checkpoints.checkpoint import Checkpoint
from outrider.models.hf import HFModel

TOKENS = 24
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS)


@pytest.fixture(scope="module")
def transformers_model(default_checkpoint: Checkpoint) -> Any:
    """transformers' Llama in fp32 with the very weights ours decodes."""
    config = AutoConfig.for_model(**default_checkpoint.config)
    state = dict(default_checkpoint.tensors(torch.float32))
    model, report = LlamaForCausalLM.from_pretrained(
        None, config=config, state_dict=state, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values())
    return model.eval()


def generate(model: Any, ids: list[int], eos: tuple[int, ...], tokens: int) -> list[int]:
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([ids]), max_new_tokens=tokens, do_sample=False, eos_token_id=list(eos), pad_token_id=eos[0]
        )
    return [int(t) for t in out[0][len(ids) :]]


def test_default_model_logits(default_checkpoint: Checkpoint, transformers_model: Any) -> None:
    """Two fp32 decoders differ by what both round, so each is held against the same model in fp64: ours rounds no worse
    than transformers' (on ARM 0.3 times as much: 3.5e-5 at most, theirs 1.3e-4)."""
    llm = LLM(drafter="none", dtype="fp32", max_batch=1, max_context=256)
    ids = default_checkpoint.tokenizer.encode("\n".join(PROMPTS))[:32]
    ours = llm.model.forward([Rows.chain(llm.model.open(), ids)])
    with torch.inference_mode():
        theirs = transformers_model(torch.tensor([ids])).logits[0]
        exact = in_fp64(transformers_model)(torch.tensor([ids])).logits[0]
    assert exact.dtype == torch.float64
    error, their_error = ((logits - exact).abs() for logits in (ours, theirs))
    assert error.max() < 2e-4
    assert error.max() < 3 * their_error.max()
    assert error.square().mean() < (2 * their_error).square().mean()


def in_fp64(model: Any) -> Any:
    """A copy of transformers' Llama that computes in fp64, norms included (its own turn to fp32 for them)."""
    wide = deepcopy(model).double()
    norms = [name for name, module in wide.named_modules() if isinstance(module, LlamaRMSNorm)]
    for name in norms:
        old = wide.get_submodule(name)
        new = torch.nn.RMSNorm(old.weight.shape, eps=old.variance_epsilon, dtype=torch.float64)
        new.weight = old.weight
        wide.set_submodule(name, new)
    return wide


@pytest.fixture(scope="module")
def greedy_by_transformers(
    default_checkpoint: Checkpoint, transformers_model: Any, pace: Pace, sixteen_rows: Callable[[], None]
) -> dict[str, list[int]]:
    prompts = PROMPTS[::4][: pace.fit(sixteen_rows, 0.2, least=4, most=10)]
    tokenizer = default_checkpoint.tokenizer
    return {
        prompt: generate(transformers_model, tokenizer.encode(prompt), tokenizer.eos_token_ids, TOKENS)
        for prompt in prompts
    }


@pytest.mark.parametrize("drafter", ["model", pytest.param("suffix", marks=pytest.mark.slow)])
def test_greedy_equals_transformers_generate(
    drafter: str, truncated_model_dir: Path, greedy_by_transformers: dict[str, list[int]]
) -> None:
    """A real draft pair, and suffix lookup, against a decoder we did not write."""
    spec = f"model:{truncated_model_dir}" if drafter == "model" else drafter
    llm = LLM(drafter=spec, draft_length=4, dtype="fp32", max_batch=4, max_context=512)
    completions = llm.generate(list(greedy_by_transformers), GREEDY)
    assert [completion.token_ids for completion in completions] == list(greedy_by_transformers.values())
    assert sum(completion.accepted for completion in completions) > 2 * len(completions)


@pytest.fixture(scope="module")
def gpt2_dir(default_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of an architecture the fast decoder does not know, with the default tokenizer."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("gpt2")
    config = AutoConfig.for_model(
        "gpt2", vocab_size=49152, n_positions=128, n_embd=48, n_layer=2, n_head=3, eos_token_id=2, bos_token_id=1
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(default_checkpoint.path / name, folder)
    return folder


def test_other_architectures_run_through_transformers(gpt2_dir: Path) -> None:
    llm = LLM(str(gpt2_dir), drafter="ngram", draft_length=5, dtype="fp32", max_batch=2)
    assert isinstance(llm.model, HFModel)
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    prompts = ["one two three one two three one two", "a b"]
    completions = llm.generate(prompts, params)
    model = AutoModelForCausalLM.from_pretrained(gpt2_dir).eval()
    for prompt, completion in zip(prompts, completions, strict=True):
        assert completion.token_ids == generate(model, llm.tokenizer.encode(prompt), (49151,), 30)
    assert sum(c.accepted for c in completions) > 5
    sampled = SamplingParams(temperature=1.0, top_k=5, seed=3, max_tokens=20)
    assert llm.generate(prompts, sampled)[0].token_ids == llm.generate(prompts, sampled, speculate=False)[0].token_ids


def test_int8_is_refused_without_the_compiled_decoder(gpt2_dir: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"int8 weights need the compiled CPU decoder.*use bf16"):
        LLM(str(gpt2_dir), dtype="int8")


def test_models_that_cannot_roll_back_are_refused() -> None:
    config = AutoConfig.for_model("mamba", vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4)
    with pytest.raises(ModelError, match="roll its state back"):
        HFModel(AutoModelForCausalLM.from_config(config), max_batch=1, max_context=64)
