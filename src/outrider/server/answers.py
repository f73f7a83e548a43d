"""What came of a request, put into the words of the protocol: usage, metrics, log-probabilities, traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from time import perf_counter
from typing import Any

from outrider.core.request import Chunk, Completion, StepTrace, Tally, TokenLogprob
from outrider.models.checkpoints.tokenizer import Tokenizer

PREDICTION = "prediction"
"""Origin of tokens drafted from the client's own prediction."""


@dataclass(slots=True)
class Answer:
    """One choice, as it comes."""

    index: int
    first: float = 0.0
    """When the first and the last tokens came."""
    last: float = 0.0
    completion: Completion | None = None

    def take(self, chunk: Chunk) -> None:
        self.last = perf_counter()
        self.first = self.first or self.last
        self.completion = chunk.completion

    @property
    def whole(self) -> Completion:
        assert self.completion is not None, "asked for at its end"
        return self.completion


def likeliest(answers: Sequence[Answer], drawn: int, n: int) -> list[Answer]:
    """Of each `drawn` in a row those `n` whose tokens had the highest mean log-probability, the likeliest first."""
    if drawn == n:
        return list(answers)
    groups = [answers[i : i + drawn] for i in range(0, len(answers), drawn)]
    return [answer for group in groups for answer in sorted(group, key=_likelihood, reverse=True)[:n]]


def _likelihood(answer: Answer) -> float:
    told = answer.whole.logprobs or ()
    return sum(each.logprob for each in told) / max(1, len(told))


def usage(answers: Sequence[Answer], prompt_tokens: int, reused: int | None) -> dict[str, Any]:
    """`reused`: tokens of the prompts that were there already; None: that is not told."""
    written = sum(len(answer.whole.token_ids) for answer in answers)
    predicted = [answer.whole.sources.get(PREDICTION, Tally()) for answer in answers]
    accepted = sum(tally.accepted for tally in predicted)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": written,
        "total_tokens": prompt_tokens + written,
        **({} if reused is None else {"prompt_tokens_details": {"cached_tokens": reused}}),
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(tally.drafted for tally in predicted) - accepted,
        },
    }


def metrics(answers: Sequence[Answer], started: float, seed: int) -> dict[str, Any]:
    """How speculation did, over the answers given. `started`: when the request arrived."""
    each = [answer.whole for answer in answers]
    steps, tokens = sum(c.steps for c in each), sum(len(c.token_ids) for c in each)
    drafted, accepted = sum(c.drafted for c in each), sum(c.accepted for c in each)
    seconds = max(c.seconds for c in each)
    return {
        "speculative_decoding": {
            "mean_acceptance_length": tokens / steps if steps else 0.0,
            "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
            "acceptance_histogram": [sum(at) for at in zip_longest(*(c.acceptance for c in each), fillvalue=0)] or [0],
            "steps": steps,
            "drafted_tokens": drafted,
            "accepted_tokens": accepted,
        },
        "time_to_first_token": min(a.first for a in answers) - started,
        "tokens_per_second": tokens / seconds if seconds > 0 else 0.0,
        "seed": seed,
    }


def word(tokenizer: Tokenizer, token: int) -> str:
    """A token for display: half a character is a replacement sign, a control token its name."""
    text = tokenizer.token_bytes(token)
    return text.decode("utf-8", errors="replace") if text else tokenizer.token(token) or ""


def step_trace(tokenizer: Tokenizer, step: StepTrace, seconds: float) -> dict[str, Any]:
    path = set(step.path)
    return {
        "drafted": [
            {
                "id": token,
                "text": word(tokenizer, token),
                "parent": parent,
                "accepted": node in path,
                "origin": step.draft.proposer(node),
            }
            for node, (token, parent) in enumerate(zip(step.draft.tokens, step.draft.parents, strict=True))
        ],
        "accepted": len(step.path),
        "seconds": seconds,
        "why": step.why,
    }


def token_traces(tokenizer: Tokenizer, chunk: Chunk) -> list[dict[str, Any]]:
    drafted = len(chunk.step.path)
    return [
        {
            "id": token,
            "text": word(tokenizer, token),
            "origin": origin,
            "kind": "drafted" if i < drafted else chunk.step.kind,
        }
        for i, (token, origin) in enumerate(zip(chunk.token_ids, chunk.origins, strict=True))
    ]


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"token": word(tokenizer, token), "logprob": logprob, "bytes": list(tokenizer.token_bytes(token))}

    content = [
        {**entry(each.token_id, each.logprob), "top_logprobs": [entry(*other) for other in each.top]} for each in tokens
    ]
    return {"content": content, "refusal": None}


def text_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[TokenLogprob], offset: int, first: int | None = None
) -> dict[str, Any]:
    """The form of text completions. `offset`: where in the text the first token begins. `first`: a token before all of
    these, of which nothing can be said."""
    words = [word(tokenizer, each.token_id) for each in tokens]
    before = [] if first is None else [word(tokenizer, first)]
    offsets = list(accumulate(map(len, before + words), initial=offset))[: len(before + words)]
    unknown = [None] * len(before)
    return {
        "tokens": before + words,
        "token_logprobs": [*unknown, *(each.logprob for each in tokens)],
        # Several tokens may look alike: the likeliest stands.
        "top_logprobs": [*unknown, *({word(tokenizer, t): v for t, v in reversed(each.top)} for each in tokens)],
        "text_offset": offsets,
    }


def prompt_logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenLogprob]) -> list[dict[str, Any] | None]:
    """In vLLM's form: for each token of the prompt, by their ids, it and the likeliest; nothing of the first."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"logprob": logprob, "decoded_token": word(tokenizer, token)}

    return [
        None,
        *(
            {str(token): entry(token, logprob) for token, logprob in ((each.token_id, each.logprob), *each.top)}
            for each in tokens
        ),
    ]
