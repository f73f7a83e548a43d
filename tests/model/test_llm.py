"""The facade on the real model: stops, limits, log-probabilities, origins, seeds, context end, letting go."""

from __future__ import annotations

import pytest
import torch

from outrider import LLM, InvalidRequest, OutriderError, SamplingParams
from outrider.core.model import Rows

REPEAT = "red green blue. red green blue. red green blue. red"
LOOP = REPEAT * 4
"""The model goes on repeating this one, so drafts are accepted in long runs."""


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2-135m", drafter="suffix", draft_length=8, max_batch=3, max_context=96)


def test_eos_ends_inside_an_accepted_run(llm: LLM) -> None:
    """A draft that runs past a stop token: nothing after it is emitted, counted or kept in the cache."""
    plain = llm.generate([LOOP], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))[0]
    assert plain.accepted >= 6
    for cut in range(1, 9):
        stop = plain.token_ids[cut]
        first = plain.token_ids.index(stop)
        done = llm.generate([LOOP], SamplingParams(temperature=0, max_tokens=12, stop_token_ids=[stop]))[0]
        assert done.token_ids == plain.token_ids[: first + 1]
        assert done.finish_reason == "stop"
        assert len(done.origins) == len(done.token_ids)


def test_stop_string_inside_an_accepted_run(llm: LLM) -> None:
    free = llm.generate([REPEAT], SamplingParams(temperature=0, max_tokens=16))[0]
    stop = "n blu"  # spans tokens
    assert stop in free.text
    chunks = list(llm.stream([REPEAT], SamplingParams(temperature=0, max_tokens=16, stop=stop)))
    text = "".join(chunk.text for chunk in chunks)
    done = chunks[-1].completion
    assert done is not None
    assert text == done.text == free.text[: free.text.index(stop)]
    assert done.finish_reason == "stop"
    assert done.token_ids == free.token_ids[: len(done.token_ids)]


def test_context_end(llm: LLM) -> None:
    """Drafts shrink and the request ends exactly at the context's edge."""
    prompt = llm.tokenizer.encode(REPEAT * 9)[: llm.model.max_context - 7]
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    fast, plain = (llm.generate([prompt], params, speculate=s)[0] for s in (True, False))
    assert fast.token_ids == plain.token_ids
    assert len(fast.token_ids) == 7
    assert fast.finish_reason == "length"


def test_more_prompts_than_slots(llm: LLM) -> None:
    params = [SamplingParams(temperature=0.9, seed=i, max_tokens=5 + i) for i in range(8)]
    prompts = ["The sun", REPEAT, "x = 1\ny ="] * 2 + ["a", "b"]
    together = llm.generate(prompts, params)
    alone = [llm.generate([p], s)[0] for p, s in zip(prompts, params, strict=True)]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]


def test_seed_is_drawn_and_replays(llm: LLM) -> None:
    first = llm.generate(["Tell me"], SamplingParams(temperature=1.2, max_tokens=12))[0]
    again = llm.generate(["Tell me"], SamplingParams(temperature=1.2, max_tokens=12, seed=first.seed))[0]
    assert again.token_ids == first.token_ids
    other = llm.generate(["Tell me"], SamplingParams(temperature=1.2, max_tokens=12))[0]
    assert other.seed != first.seed


def test_logprobs_are_those_of_plain_decoding(llm: LLM) -> None:
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=10, logprobs=3)
    fast, plain = (llm.generate([REPEAT], params, speculate=s)[0] for s in (True, False))
    assert fast.logprobs == plain.logprobs
    assert fast.logprobs is not None
    assert [entry.token_id for entry in fast.logprobs] == fast.token_ids
    slot = llm.model.open()
    ids = llm.tokenizer.encode(REPEAT) + fast.token_ids
    logits = llm.model.forward([Rows.chain(slot, ids)]).double().log_softmax(-1)
    llm.model.close(slot)
    for i, entry in enumerate(fast.logprobs):
        row = logits[len(ids) - len(fast.token_ids) - 1 + i]
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-9)
        assert [v for _, v in entry.top] == pytest.approx(torch.topk(row, 3).values.tolist(), abs=1e-9)


def test_origins_and_trace_tell_who_proposed_what(llm: LLM) -> None:
    done = llm.generate([REPEAT], SamplingParams(temperature=0, max_tokens=16), trace=True)[0]
    assert set(done.origins) == {"suffix", "target"}
    assert done.origins.count("suffix") == done.accepted
    assert sum(len(step.path) + (step.token is not None) for step in done.trace) == len(done.token_ids)
    assert len(done.trace) == done.steps


def test_min_tokens_and_ignore_eos(llm: LLM) -> None:
    short = llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=60))[0]
    assert short.finish_reason == "stop"
    longer = SamplingParams(temperature=0, max_tokens=60, min_tokens=len(short.token_ids) + 5)
    assert len(llm.generate(["The capital of France is"], longer)[0].token_ids) >= len(short.token_ids) + 5


def test_chat_uses_the_template(llm: LLM) -> None:
    answer = llm.chat([{"role": "user", "content": "Say hi."}], SamplingParams(temperature=0, max_tokens=8))
    assert answer.prompt_tokens > len(llm.tokenizer.encode("Say hi."))
    assert answer.text


def test_closing_a_stream_lets_everything_go(llm: LLM) -> None:
    for _ in range(5):  # more rounds than there are slots
        stream = llm.stream(["The sun", "The moon"], SamplingParams(max_tokens=20))
        next(stream)
        stream.close()  # type: ignore[attr-defined]
    assert llm.engine.idle
    assert llm.generate(["The sun"], SamplingParams(max_tokens=3, temperature=0))[0].token_ids


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ("", {}, "prompt: it is empty"),
        ([5, 49152], {}, "token id 49152 is outside"),
        ([5, -1], {}, "token id -1 is outside"),
        ("word " * 200, {}, "leave no room in a context of 96"),
        ("a", {"logit_bias": {60000: 1.0}}, "logit_bias"),
        ("a", {"stop_token_ids": [60000]}, "stop_token_ids"),
    ],
)
def test_impossible_requests_name_what_is_wrong(
    llm: LLM, prompt: str | list[int], params: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        llm.generate([prompt], SamplingParams(**params))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int3"}, "dtype must be"),
        ({"device": "tpu"}, "device must be"),
        ({"threads": 0}, "threads must be"),
        ({"draft_length": -1}, "draft_length must be"),
        ({"max_batch": 0}, "max_batch must be"),
        ({"drafter": "oracle"}, "unknown drafter"),
        ({"drafter": "model"}, "names the draft model"),
        ({"drafter": "oracle", "model": "nowhere"}, "unknown drafter"),  # before anything is loaded
        ({"also": ["suffix:4"], "model": "nowhere"}, "takes no path"),
        ({"model": "smollm3"}, "no model 'smollm3'"),
    ],
)
def test_impossible_settings_name_what_is_wrong(options: dict[str, object], message: str) -> None:
    with pytest.raises(OutriderError, match=message):
        LLM(**options)  # type: ignore[arg-type]
