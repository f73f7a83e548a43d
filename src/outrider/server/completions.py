"""POST /v1/completions"""

from __future__ import annotations

from typing import Any

from outrider.core.request import Chunk
from outrider.models.checkpoints.tokenizer import Tokenizer
from outrider.server.answers import Answer, prompt_logprobs, text_logprobs, word
from outrider.server.translate import PreparedRequest, says_more


class TextForm:
    """Plain text. Log-probabilities come with the place of each token in the text of all tokens so far."""

    prefix = "cmpl"
    whole = "text_completion"
    piece = "text_completion"

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}

    def opening(self, index: int, prepared: PreparedRequest) -> dict[str, Any] | None:
        return {"index": index, "text": prepared.echoes[index], "logprobs": None} if prepared.echoes[index] else None

    def delta(
        self, answer: Answer, chunk: Chunk, prepared: PreparedRequest, tokenizer: Tokenizer
    ) -> dict[str, Any] | None:
        logprobs = None
        if not (chunk.text or says_more(chunk, prepared)):
            return None
        if prepared.logprobs:
            offset = self._offsets.get(answer.index, 0)
            logprobs = text_logprobs(tokenizer, chunk.logprobs, offset)
            self._offsets[answer.index] = offset + sum(len(word(tokenizer, token)) for token in chunk.token_ids)
        return {"index": answer.index, "text": chunk.text, "logprobs": logprobs}

    def choice(self, answer: Answer, prepared: PreparedRequest, tokenizer: Tokenizer) -> dict[str, Any]:
        done = answer.whole
        before, said = done.prompt_logprobs or [], done.logprobs or []
        logprobs = None
        if prepared.logprobs and prepared.echoes[answer.index] is not None:
            logprobs = text_logprobs(tokenizer, [*before, *said], 0, prepared.requests[answer.index].tokens[0])
        elif prepared.logprobs:
            logprobs = text_logprobs(tokenizer, said, 0)
        choice = {
            "index": answer.index,
            "text": (prepared.echoes[answer.index] or "") + done.text,
            "logprobs": logprobs,
        }
        if prepared.prompt_logprobs:
            choice["prompt_logprobs"] = prompt_logprobs(tokenizer, before)
        return choice

    def reason(self, answer: Answer, prepared: PreparedRequest) -> str | None:
        return answer.completion.finish_reason if answer.completion else None
