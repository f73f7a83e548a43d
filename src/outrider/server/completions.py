"""POST /v1/completions"""

from __future__ import annotations

from typing import Any

from outrider.engine.request_state import RequestOutput
from outrider.models.checkpoints.tokenizer import Tokenizer
from outrider.server.answers import Answer, prompt_logprobs, text_logprobs, word
from outrider.server.translate import Job, says_more


class TextForm:
    """Plain text. Log-probabilities come with the place of each token in the text of all tokens so far."""

    prefix = "cmpl"
    whole = "text_completion"
    piece = "text_completion"

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}

    def opening(self, index: int, job: Job) -> dict[str, Any] | None:
        return {"index": index, "text": job.echoes[index], "logprobs": None} if job.echoes[index] else None

    def delta(self, answer: Answer, delivery: RequestOutput, job: Job, tokenizer: Tokenizer) -> dict[str, Any] | None:
        chunk, logprobs = delivery.chunk, None
        if not (chunk.text or says_more(delivery, job)):
            return None
        if job.logprobs:
            offset = self._offsets.get(answer.index, 0)
            logprobs = text_logprobs(tokenizer, chunk.logprobs, offset)
            self._offsets[answer.index] = offset + sum(len(word(tokenizer, token)) for token in chunk.token_ids)
        return {"index": answer.index, "text": chunk.text, "logprobs": logprobs}

    def choice(self, answer: Answer, job: Job, tokenizer: Tokenizer) -> dict[str, Any]:
        done = answer.completion
        assert done is not None
        before, said = done.prompt_logprobs or [], done.logprobs or []
        logprobs = None
        if job.logprobs and job.echoes[answer.index] is not None:
            logprobs = text_logprobs(tokenizer, [*before, *said], 0, job.requests[answer.index].tokens[0])
        elif job.logprobs:
            logprobs = text_logprobs(tokenizer, said, 0)
        choice = {"index": answer.index, "text": (job.echoes[answer.index] or "") + done.text, "logprobs": logprobs}
        if job.prompt_logprobs:
            choice["prompt_logprobs"] = prompt_logprobs(tokenizer, before)
        return choice

    def reason(self, answer: Answer, job: Job) -> str | None:
        return answer.completion.finish_reason if answer.completion else None
