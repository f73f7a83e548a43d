"""Runs a prepared request and answers in the form of a response."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any
from uuid import uuid4

from fastapi import Request as HttpRequest

from outrider.core.request import Chunk
from outrider.engine.request_state import OutputStream
from outrider.server.chat import ChatForm
from outrider.server.generation import Generation
from outrider.server.metrics import ModelMetrics
from outrider.server.responses.asked import ResponsesRequest
from outrider.server.responses.output import Output
from outrider.server.served import Served
from outrider.server.sse import named_event
from outrider.server.tools.call_parser import Event, Said
from outrider.server.translate import PreparedRequest

_REPEATED = ("instructions", "max_output_tokens", "temperature", "top_p", "tool_choice", "parallel_tool_calls")


class ResponseGeneration(Generation):
    """One answer, item by item."""

    def __init__(
        self,
        request: HttpRequest,
        served: Served,
        prepared: PreparedRequest,
        asked: ResponsesRequest,
        metrics: ModelMetrics,
    ) -> None:
        super().__init__(request, served, prepared, ChatForm(), metrics)
        self._asked = asked
        self._id = f"resp_{uuid4().hex}"
        self._output = Output()
        self._reader = prepared.tools.reader() if prepared.tools else None

    async def _whole(self, stream: OutputStream) -> dict[str, Any]:
        async for chunk in stream:
            self._take(chunk)
            for _ in self._told(chunk):
                pass
        self._finish()
        return self._response()

    async def _pieces(self, stream: OutputStream) -> AsyncGenerator[bytes]:
        number = 0

        def event(told: dict[str, Any]) -> bytes:
            nonlocal number
            number += 1
            return named_event(told["type"], {**told, "sequence_number": number - 1})

        for kind in ("response.created", "response.in_progress"):
            yield event({"type": kind, "response": self._response()})
        async for chunk in stream:
            self._take(chunk)
            for told in self._told(chunk):
                yield event(told)
        response = self._response()
        yield event({"type": f"response.{response['status']}", "response": response})

    def _told(self, chunk: Chunk) -> list[dict[str, Any]]:
        """Events that say what a step brought."""
        reader = self._reader
        events: list[Event] = [Said(chunk.text)] if chunk.text else []
        if reader is not None:
            events = [*reader.push(chunk.text), *(reader.finish() if chunk.completion else ())]
        told = list(self._output.take(events))
        if chunk.completion is not None:
            told += self._output.finish(chunk.completion.finish_reason == "stop")
        return told

    def _response(self) -> dict[str, Any]:
        (answer,) = self._answers
        done, asked = answer.completion, self._asked
        cut = done is not None and done.finish_reason == "length"
        given = asked.model_dump(include=set(_REPEATED), exclude_none=True)
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._head["created"],
            "model": self._head["model"],
            "status": "in_progress" if done is None else "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "error": None,
            "output": list(self._output.items) if done is not None else [],
            "previous_response_id": None,
            "store": False,
            "metadata": {},
            **dict.fromkeys(_REPEATED),
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            **given,
            "tools": [tool.model_dump(exclude_none=True) for tool in asked.tools or ()],
            "usage": None if done is None else self._usage(),
            **({} if done is None else {"metrics": self._measured(self._answers)}),
        }

    def _usage(self) -> dict[str, Any]:
        said = super()._usage()
        return {
            "input_tokens": said["prompt_tokens"],
            "input_tokens_details": said.get("prompt_tokens_details", {"cached_tokens": 0}),
            "output_tokens": said["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": said["total_tokens"],
        }
