"""POST /v1/chat/completions"""

from __future__ import annotations

from typing import Any

from outrider.engine.tickets import Delivery
from outrider.models.checkpoints.tokenizer import Tokenizer
from outrider.server.answers import Answer, chat_logprobs
from outrider.server.translate import Job


class ChatForm:
    """Messages and deltas."""

    prefix = "chatcmpl"
    whole = "chat.completion"
    piece = "chat.completion.chunk"

    def opening(self, index: int, job: Job) -> dict[str, Any] | None:
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def delta(self, answer: Answer, delivery: Delivery, job: Job, tokenizer: Tokenizer) -> dict[str, Any]:
        chunk = delivery.chunk
        return {
            "index": answer.index,
            "delta": {"content": chunk.text} if chunk.text else {},
            "logprobs": chat_logprobs(tokenizer, chunk.logprobs) if job.logprobs else None,
        }

    def choice(self, answer: Answer, job: Job, tokenizer: Tokenizer) -> dict[str, Any]:
        done = answer.completion
        assert done is not None
        return {
            "index": answer.index,
            "message": {"role": "assistant", "content": done.text, "refusal": None},
            "logprobs": chat_logprobs(tokenizer, done.logprobs or ()) if job.logprobs else None,
        }
