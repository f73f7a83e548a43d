"""The Python API takes what it can, and answers what it cannot with one sentence: no traceback, nothing dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_llm import tiny_gguf, tiny_llm

from outrider import LLM, Grammar, InvalidRequest, OutriderError, SamplingParams
from outrider.control.controller import FixedLength
from outrider.core.draft import Speculation
from outrider.drafters.suffix import SuffixDrafter

HUGE = 10**5000
"""An integer that Python does not even write out."""
FEW = SamplingParams(max_tokens=2, temperature=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return tiny_llm(tmp_path_factory.mktemp("llm"), also=("ngram",))


def one_sentence(refused: pytest.ExceptionInfo[OutriderError]) -> None:
    message = str(refused.value)
    assert 10 < len(message) < 300
    assert "\n" not in message


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (["a", 1, 2, "b"], "'a' stands among token ids"),
        ([1, "b"], "'b' stands among token ids"),
        ([1, [2, 3]], "stands among token ids"),
        ([1, 2.5], "2.5 stands among"),
        (None, "prompts must be a text, token ids"),
        (5, "prompts must be"),
        (1.5, "prompts must be"),
        (b"abc", "prompts must be"),
        ({"a": 1}, "prompts must be"),
        ({"a", "b"}, "prompts must be"),
        (np.array(5), "prompts must be"),
        ([None], r"prompts\[0\] must be text or a list"),
        (["a", None], r"prompts\[1\] must be"),
        ([b"a"], r"prompts\[0\] must be"),
        ([True], r"prompts\[0\] must be"),
        ([1.5], r"prompts\[0\] must be"),
        (np.array([1.5]), r"prompts\[0\] must be"),
        (torch.tensor([1.5]), r"prompts\[0\] must be"),
        ([[1.5]], r"prompts\[0\]: 1.5 is no token id"),
        ([["a"]], "'a' is no token id"),
        ([[True]], "True is no token id"),
        ([[1, None]], "None is no token id"),
        (np.ones((2, 2, 2), dtype=int), "is no token id"),
        ([HUGE], "a number of 16610 bits is outside"),
        ([[-1]], "-1 is outside"),
    ],
)
def test_prompts_that_are_none(llm: LLM, prompts: Any, message: str) -> None:
    for ask in (llm.generate, llm.stream):
        with pytest.raises(InvalidRequest, match=message) as refused:
            ask(prompts, FEW)
        one_sentence(refused)


@pytest.mark.parametrize(
    "prompts",
    [
        [40, 41],
        (40, 41),
        range(40, 42),
        np.array([40, 41], dtype=np.uint8),
        torch.tensor([40, 41], dtype=torch.int32),
        [np.int64(40), np.int64(41)],
        [torch.tensor(40), 41],
        [[40, 41]],
        [np.array([40, 41])],
        np.array([[40, 41]]),
        torch.tensor([[40, 41]]),
        (prompt for prompt in [[40, 41]]),
    ],
    ids=lambda given: type(given).__name__,
)
def test_token_ids_in_any_form(llm: LLM, prompts: Any) -> None:
    done = llm.generate(prompts, FEW)
    assert len(done) == 1
    assert done[0].prompt_tokens == 2
    assert done[0].token_ids == llm.generate([[40, 41]], FEW)[0].token_ids


def test_texts_and_ids_side_by_side(llm: LLM) -> None:
    prompts: Any = ["the hell", [40, 41], np.array([7])]
    done = llm.generate(prompts, FEW)
    assert [one.prompt_tokens for one in done] == [len(llm.tokenizer.encode("the hell")), 2, 1]
    assert llm.generate([], FEW) == []


@pytest.mark.parametrize(
    "params", [{"max_tokens": 2}, [{"max_tokens": 2}], 5, "x", [None], [], [FEW, FEW], SamplingParams], ids=str
)
def test_params_that_are_none(llm: LLM, params: Any) -> None:
    with pytest.raises(InvalidRequest, match="params") as refused:
        llm.generate("a", params)
    one_sentence(refused)


@pytest.mark.parametrize(
    "messages", ["str", None, 5, [None], ["hi"], {"role": "user", "content": "x"}, [[]], b"x"], ids=str
)
def test_messages_that_are_none(llm: LLM, messages: Any) -> None:
    with pytest.raises(InvalidRequest, match='"role": "user"') as refused:
        llm.chat(messages)
    one_sentence(refused)


@pytest.mark.parametrize("options", [{"speculate": "no"}, {"speculate": None}, {"trace": 5}], ids=str)
def test_flags_that_are_none(llm: LLM, options: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be true or false") as refused:
        llm.generate("a", FEW, **options)
    one_sentence(refused)


@pytest.mark.parametrize(
    ("speculation", "message"),
    [
        (5, "must be a Speculation"),
        ({"max_nodes": 1}, "must be a Speculation"),
        (Speculation(max_nodes=-HUGE), "max_nodes"),
        (Speculation(max_nodes=1.5), "max_nodes"),  # type: ignore[arg-type]
        (Speculation(drafter=["suffix"]), "there is no"),  # type: ignore[arg-type]
        (Speculation(drafter=np.array(["a", "b"])), "there is no"),  # type: ignore[arg-type]
        (Speculation(prediction="abc"), "prediction must be"),  # type: ignore[arg-type]
        (Speculation(prediction=None), "prediction must be"),  # type: ignore[arg-type]
        (Speculation(prediction=(1.5,)), "1.5 is no token id"),  # type: ignore[arg-type]
        (Speculation(prediction=(HUGE,)), "is outside"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_speculation_that_is_none(llm: LLM, speculation: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        llm.requests.build("a", FEW, speculation=speculation)
    one_sentence(refused)


def test_a_prediction_in_an_array(llm: LLM) -> None:
    made = llm.requests.build("a", FEW, speculation=Speculation(prediction=np.array([5, 6])))  # type: ignore[arg-type]
    assert made.speculation.prediction == (5, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": None}, "model must be"),
        ({"model": 5}, "model must be"),
        ({"model": b"x"}, "model must be"),
        ({"model": ["a"]}, "model must be"),
        ({"model": ""}, "model must be"),
        ({"model": "a" * 5000}, "cannot be looked up"),
        ({"model": "~nobodyhere/x"}, "cannot be looked up"),
        ({"model": Path("/nowhere")}, "no model '/nowhere'"),
        ({"threads": True}, "threads must be"),
        ({"threads": 1.5}, "threads must be"),
        ({"threads": "a"}, "threads must be"),
        ({"threads": HUGE}, "threads must be"),
        ({"threads": 10**7}, "threads must be"),
        ({"max_batch": 1.5}, "max_batch must be"),
        ({"max_batch": True}, "max_batch must be"),
        ({"max_batch": 10**9}, "max_batch must be"),
        ({"max_context": "a"}, "max_context must be"),
        ({"max_context": 1.5}, "max_context must be"),
        ({"kv_tokens": "a"}, "kv_tokens must be"),
        ({"kv_tokens": True}, "kv_tokens must be"),
        ({"kv_tokens": -HUGE}, "kv_tokens must be"),
        ({"gpu_memory": 0}, "gpu_memory must be a number above 0 and at most 1"),
        ({"gpu_memory": 1.5}, "gpu_memory must be"),
        ({"gpu_memory": "all"}, "gpu_memory must be"),
        ({"drafter": 5}, "drafter must be"),
        ({"drafter": None}, "drafter must be"),
        ({"drafter": SuffixDrafter}, "drafter must be"),
        ({"also": "suffix"}, "also must be a list"),
        ({"also": 5}, "also must be"),
        ({"also": [5]}, "also must name drafters"),
        ({"draft_length": -HUGE}, "draft_length"),
        ({"draft_length": np.array([1, 2])}, "draft_length"),
        ({"dtype": np.array(["a", "b"])}, "dtype must be"),
        ({"device": None}, "device must be"),
        ({"device": 5}, "device must be"),
        ({"device": "cpu:foo"}, "device must be"),
        ({"device": "mps"}, "device must be"),
        ({"bitwise": 5}, "bitwise must be"),
        ({"remember": "no"}, "remember must be"),
        ({"progress": 5}, "progress must be"),
    ],
    ids=lambda given: str(next(iter(given))) if isinstance(given, dict) else None,
)
def test_settings_that_are_none(model: Path, options: Any, message: str) -> None:
    with pytest.raises(OutriderError, match=message) as refused:
        LLM(**{"model": str(model), "drafter": "none", "max_batch": 1, **options})
    one_sentence(refused)


def test_a_path_and_a_device_of_torch(model: Path) -> None:
    llm = LLM(model, drafter=SuffixDrafter(), device=torch.device("cpu"), max_batch=1)
    assert llm.generate("the hell", FEW)[0].token_ids


def test_another_drafter_that_is_none(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="drafter must be"):
        llm.with_drafter(5, FixedLength(4))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="controller must be"):
        llm.with_drafter("suffix", 4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Grammar("json", 5),  # type: ignore[arg-type]
        lambda: Grammar("xml", "x"),  # type: ignore[arg-type]
        lambda: Grammar("json", "not json"),
        lambda: Grammar.regex("\ud800"),
        lambda: Grammar.json_schema({"const": "\ud800"}),
    ],
)
def test_grammars_that_are_none(llm: LLM, make: Any) -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(InvalidRequest, match="grammar") as refused:
        llm.generate("a", SamplingParams(max_tokens=2, grammar=make()))
    one_sentence(refused)


def test_memory_that_there_is_not() -> None:
    from outrider.models.memory import lazy_zeros

    with pytest.raises(OutriderError, match="lower max_batch or max_context"):
        lazy_zeros((1 << 40, 1 << 20), torch.float32, torch.device("cpu"))
