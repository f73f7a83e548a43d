"""Log-probabilities of a prompt: those of transformers, whoever has run the prompt before, in whatever pieces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from live_server import Live, live_server
from prompts import PROMPTS
from tiny_llm import tiny_llm
from transformers import AutoConfig, LlamaForCausalLM

from outrider import LLM, InvalidRequest, SamplingParams
from outrider.core.request import Completion
from outrider.models.checkpoints.checkpoint import Checkpoint

ONLY_SCORED = SamplingParams(max_tokens=0, prompt_logprobs=2)


def test_scores_are_those_of_transformers(default_checkpoint: Checkpoint) -> None:
    config = AutoConfig.for_model(**default_checkpoint.config)
    state = dict(default_checkpoint.tensors(torch.float32))
    theirs = LlamaForCausalLM.from_pretrained(None, config=config, state_dict=state, dtype=torch.float32).eval()
    llm = LLM(drafter="none", dtype="fp32", max_batch=1, max_context=256)
    ids = default_checkpoint.tokenizer.encode("\n".join(PROMPTS))[:120]
    (done,) = llm.generate([ids], ONLY_SCORED)
    with torch.inference_mode():
        logp = torch.log_softmax(theirs(torch.tensor([ids])).logits[0].double(), dim=-1)
    expected = logp[:-1].gather(-1, torch.tensor(ids[1:]).unsqueeze(-1)).flatten()
    assert done.prompt_logprobs is not None
    assert [each.token_id for each in done.prompt_logprobs] == ids[1:]
    found = torch.tensor([each.logprob for each in done.prompt_logprobs], dtype=torch.float64)
    assert (found - expected).abs().max() < 1e-4
    assert [each.top[0][0] for each in done.prompt_logprobs] == logp[:-1].argmax(-1).tolist()


def scored(llm: LLM, prompt: list[int], **options: Any) -> Completion:
    return llm.generate([prompt], SamplingParams(prompt_logprobs=2, temperature=0, **options))[0]


@pytest.fixture
def tiny(tmp_path: Path) -> LLM:
    return tiny_llm(tmp_path)


PROMPT = [(7 * i * i + 3) % 200 for i in range(60)]


def test_what_is_cached_is_scored_again(tiny: LLM) -> None:
    first = scored(tiny, PROMPT, max_tokens=4)
    assert len(first.token_ids) == 4
    hits = tiny.engine.stats.prefix_hits
    again = scored(tiny, PROMPT, max_tokens=0)
    assert again.prompt_logprobs == first.prompt_logprobs
    assert tiny.engine.stats.prefix_hits == hits
    plainly = tiny.generate([PROMPT], SamplingParams(max_tokens=4, temperature=0))[0]
    assert tiny.engine.stats.prefix_hits == hits + 1
    assert plainly.token_ids == first.token_ids
    assert plainly.prompt_logprobs is None


def test_nothing_is_generated_where_nothing_is_wanted(tiny: LLM) -> None:
    done = scored(tiny, PROMPT, max_tokens=0)
    assert (done.text, done.token_ids, done.finish_reason, done.steps) == ("", [], "length", 0)
    assert scored(tiny, PROMPT[:1], max_tokens=0).prompt_logprobs == []
    assert tiny.engine.idle
    assert tiny.engine.leaks() == []
    with pytest.raises(InvalidRequest, match="max_tokens"):
        SamplingParams(max_tokens=0)


def test_scores_depend_on_nobody_else(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts in pieces of any size, beside others that are scored, or generate, or begin alike."""
    alone = [scored(tiny, PROMPT[i:], max_tokens=3) for i in range(3)]
    params = [SamplingParams(prompt_logprobs=2, temperature=0, max_tokens=n) for n in (3, 0, 3)]
    for chunk in (256, 5, 1):
        monkeypatch.setattr(tiny.engine.scheduler, "_chunk", chunk)
        together = tiny.generate([PROMPT, PROMPT[1:], PROMPT[2:]], params)
        assert [each.prompt_logprobs for each in together] == [each.prompt_logprobs for each in alone]
        assert together[2].token_ids == alone[2].token_ids


def test_those_sent_back_are_scored_once(tmp_path: Path) -> None:
    tight = tiny_llm(tmp_path, kv_tokens=256, max_context=128)
    params = SamplingParams(prompt_logprobs=0, temperature=0, max_tokens=100, ignore_eos=True)
    prompts = [PROMPT[i : i + 20] for i in range(3)]
    alone = [tight.generate([prompt], params)[0] for prompt in prompts]
    together = tight.generate(prompts, params)
    assert tight.engine.stats.preemptions > 0
    assert [each.prompt_logprobs for each in together] == [each.prompt_logprobs for each in alone]
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]


def test_one_that_is_taken_out_halfway_goes_on_where_it_was(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = scored(tiny, PROMPT, max_tokens=3)
    monkeypatch.setattr(tiny.engine.scheduler, "_chunk", 7)
    request = tiny.requests.build(PROMPT, SamplingParams(prompt_logprobs=2, temperature=0, max_tokens=3))
    for steps in (3, 99):
        tiny.engine.add(request)
        for _ in range(steps):
            if not request.ended:
                tiny.engine.step()
        assert request.ended or 0 < len(request.scores) < len(PROMPT) - 1
        tiny.engine.remove(request)
    assert request.completion().prompt_logprobs == alone.prompt_logprobs
    assert request.completion().token_ids == alone.token_ids


# -- the server's forms

MODEL = "smollm2-135m"
TEXT = "Rivers flow to the sea. Grüße, 世界!"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    llm = LLM(MODEL, also="available", draft_length=4, remember=False, max_batch=4, max_context=512)
    with live_server(llm) as server:
        yield server


@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_echo_with_log_probabilities(live: Live, tokens: int) -> None:
    ids = live.llm.tokenizer.encode(TEXT)
    expected = scored(live.alone, ids, max_tokens=tokens)
    for prompt in (TEXT, ids):
        words: Any = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": tokens, "logprobs": 2}
        answer = live.openai.completions.create(**words, echo=True)
        choice = answer.choices[0]
        told: Any = choice.logprobs
        assert choice.text == TEXT + expected.text
        assert (
            "".join(told.tokens[: len(ids)]).replace("�", "") == TEXT.replace("世", "").replace("界", "")[: len(TEXT)]
        )
        assert told.token_logprobs[0] is None
        assert told.top_logprobs[0] is None
        assert told.token_logprobs[1 : len(ids)] == [each.logprob for each in expected.prompt_logprobs or ()]
        assert len(told.tokens) == len(told.top_logprobs) == len(told.text_offset) == len(ids) + tokens
        assert told.text_offset[:2] == [0, len(told.tokens[0])]
        assert answer.usage.completion_tokens == tokens
    if tokens:
        said: Any = live.openai.completions.create(**words).choices[0].logprobs
        assert said.tokens == told.tokens[len(ids) :]


def test_log_probabilities_of_prompts_as_vllm_has_them(live: Live) -> None:
    ids = live.llm.tokenizer.encode(TEXT)
    both = live.post("/v1/completions", prompt=[ids, ids[:5]], max_tokens=1, prompt_logprobs=1).json()["choices"]
    assert [len(choice["prompt_logprobs"]) for choice in both] == [len(ids), 5]
    told = both[0]["prompt_logprobs"]
    assert told[0] is None
    assert all(str(token) in entries for token, entries in zip(ids[1:], told[1:], strict=True))
    assert both[1]["prompt_logprobs"] == told[:5]
    assert both[0]["logprobs"] is None


def test_scores_are_not_streamed(live: Live) -> None:
    for asked in ({"prompt_logprobs": 1}, {"echo": True, "logprobs": 1}):
        refused = live.post("/v1/completions", prompt="x", stream=True, **asked)
        assert refused.json()["error"]["param"] == "stream"
    with pytest.raises(openai.BadRequestError) as bad:
        live.openai.completions.create(model=MODEL, prompt="x", max_tokens=0)
    assert bad.value.param == "max_tokens"
    assert live.post("/v1/completions", prompt="x", max_tokens=0, echo=True).json()["choices"][0]["text"] == "x"
