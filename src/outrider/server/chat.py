"""POST /v1/chat/completions"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from outrider.core.request import Chunk
from outrider.models.checkpoints.tokenizer import Tokenizer
from outrider.server.answers import Answer, chat_logprobs
from outrider.server.tools.call_parser import Argued, Call, Called, CallParser, Event, Said
from outrider.server.translate import PreparedRequest, says_more


class ChatForm:
    """Messages and deltas. Where there are tools, each answer is read as it comes."""

    prefix = "chatcmpl"
    whole = "chat.completion"
    piece = "chat.completion.chunk"

    def __init__(self) -> None:
        self._readers: dict[int, CallParser] = {}

    def opening(self, index: int, prepared: PreparedRequest) -> dict[str, Any] | None:
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def delta(
        self, answer: Answer, chunk: Chunk, prepared: PreparedRequest, tokenizer: Tokenizer
    ) -> dict[str, Any] | None:
        told = {"content": chunk.text} if chunk.text else {}
        if (reader := self._reader(answer, prepared)) is not None:
            told = _told([*reader.push(chunk.text), *(reader.finish() if chunk.completion else ())])
        if not told and not says_more(chunk, prepared):
            return None
        return {
            "index": answer.index,
            "delta": told,
            "logprobs": chat_logprobs(tokenizer, chunk.logprobs) if prepared.logprobs else None,
        }

    def choice(self, answer: Answer, prepared: PreparedRequest, tokenizer: Tokenizer) -> dict[str, Any]:
        done = answer.whole
        message: dict[str, Any] = {"role": "assistant", "content": done.text, "refusal": None}
        if (reader := self._reader(answer, prepared)) is not None:
            reader.push(done.text)
            reader.finish()
            if reader.read.calls:
                message["content"] = reader.read.content or None
                message["tool_calls"] = [_call(call) for call in reader.read.calls]
        return {
            "index": answer.index,
            "message": message,
            "logprobs": chat_logprobs(tokenizer, done.logprobs or ()) if prepared.logprobs else None,
        }

    def reason(self, answer: Answer, prepared: PreparedRequest) -> str | None:
        reason = answer.completion.finish_reason if answer.completion else None
        reader = self._reader(answer, prepared)
        if reason == "stop" and reader is not None and reader.complete and prepared.tools and not prepared.tools.named:
            return "tool_calls"
        return reason

    def _reader(self, answer: Answer, prepared: PreparedRequest) -> CallParser | None:
        if prepared.tools is None:
            return None
        if answer.index not in self._readers:
            self._readers[answer.index] = prepared.tools.reader()
        return self._readers[answer.index]


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _told(events: Iterable[Event]) -> dict[str, Any]:
    """What was read, as a delta: text, and pieces of calls, those of one call together."""
    content = ""
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        match event:
            case Said(text):
                content += text
            case Called(index, _, name):
                calls[index] = {"index": index, **_call(Call(event.id, name))}
            case Argued(index, text):
                call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                call["function"]["arguments"] += text
    return {**({"content": content} if content else {}), **({"tool_calls": list(calls.values())} if calls else {})}
