"""Runs a request and answers with what comes of it, whole or in a stream: for chat and text completions alike."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from time import time
from typing import Any, Protocol
from uuid import uuid4

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response

from outrider import __version__
from outrider.core.request import Chunk
from outrider.engine.request_state import OutputStream
from outrider.errors import OutriderError
from outrider.models.checkpoints.tokenizer import Tokenizer
from outrider.server import answers
from outrider.server.answers import Answer
from outrider.server.callers import caller_of
from outrider.server.errors import as_api_error
from outrider.server.metrics import ModelMetrics
from outrider.server.records import Record, record
from outrider.server.served import Served
from outrider.server.sse import DONE, EventStream, Gone, event, unless_gone
from outrider.server.translate import PreparedRequest

log = logging.getLogger("outrider.server")


class ResponseForm(Protocol):
    """How one kind of answer is written."""

    prefix: str
    whole: str
    """`object` of a whole answer, and of a piece of a stream."""
    piece: str

    def opening(self, index: int, prepared: PreparedRequest) -> dict[str, Any] | None:
        """A choice that opens a stream, before anything is generated."""
        ...

    def delta(
        self, answer: Answer, chunk: Chunk, prepared: PreparedRequest, tokenizer: Tokenizer
    ) -> dict[str, Any] | None:
        """A choice with what a step brought, without its finish_reason; None where there is nothing to say yet. Asked
        once for every step, in order."""
        ...

    def choice(self, answer: Answer, prepared: PreparedRequest, tokenizer: Tokenizer) -> dict[str, Any]:
        """A finished choice, without its finish_reason."""
        ...

    def reason(self, answer: Answer, prepared: PreparedRequest) -> str | None:
        """Why a choice has ended; None: it has not. Asked after what it brought."""
        ...


class Generation:
    """One request on its way through the engine."""

    def __init__(
        self, request: HttpRequest, served: Served, prepared: PreparedRequest, form: ResponseForm, metrics: ModelMetrics
    ) -> None:
        self._request = request
        self._served = served
        self._tokenizer = served.llm.tokenizer
        self._prepared = prepared
        self._form = form
        self._metrics = metrics
        self._record: Record = record(request.scope)
        self._caller = caller_of(request.scope)
        self._answers = [Answer(i) for i in range(len(prepared.requests))]
        self._head = {"id": f"{form.prefix}-{uuid4().hex}", "created": int(time()), "model": served.name}

    async def respond(self) -> Response:
        stream = self._served.service.stream(*self._prepared.requests)
        self._caller.spend(self._prepared.prompt_tokens)
        if self._prepared.stream:
            return EventStream(self._events(stream), stream.close)
        try:
            return JSONResponse(await unless_gone(self._whole(stream), self._request.receive))
        except Gone:
            self._record.break_off("cancelled", "client left")
            return Response(status_code=499)
        finally:
            stream.close()

    async def _whole(self, stream: OutputStream) -> dict[str, Any]:
        traces: dict[int, dict[str, list[Any]]] = {}
        async for chunk in stream:
            answer = self._take(chunk)
            if self._prepared.trace:
                trace = traces.setdefault(answer.index, {"tokens": [], "steps": []})
                trace["tokens"] += answers.token_traces(self._tokenizer, chunk)
                trace["steps"].append(answers.step_trace(self._tokenizer, chunk.step, chunk.seconds))
        choices = []
        for index, answer in enumerate(answers.likeliest(self._answers, self._prepared.drawn, self._prepared.n)):
            choice = {**self._form.choice(answer, self._prepared, self._tokenizer), "index": index}
            choice["finish_reason"] = self._form.reason(answer, self._prepared)
            if self._prepared.trace:
                choice["outrider"] = traces[answer.index]
            choices.append(choice)
        self._finish()
        return {
            **self._top(self._form.whole, choices),
            "usage": self._usage(),
            "metrics": answers.metrics(self._answers, self._record.started, self._prepared.seed),
        }

    async def _events(self, stream: OutputStream) -> AsyncGenerator[bytes]:
        try:
            async with aclosing(self._pieces(stream)) as pieces:
                async for piece in pieces:
                    yield piece
            self._finish()
        except Exception as error:
            # The status has been sent: what went wrong can only be said in the stream.
            if not isinstance(error, OutriderError):
                log.exception("unforeseen", extra={"facts": {"request_id": self._record.id}})
            told = as_api_error(error)
            self._record.break_off("failed", told.message)
            yield event(told.body)
        yield DONE

    async def _pieces(self, stream: OutputStream) -> AsyncGenerator[bytes]:
        """The events of an answer that comes to its end."""
        extra = {"usage": None} if self._prepared.include_usage else {}
        for index in range(len(self._answers)):
            if (choice := self._form.opening(index, self._prepared)) is not None:
                yield self._event([{**choice, "finish_reason": None}], extra)
        async for chunk in stream:
            answer = self._take(chunk)
            if (choice := self._piece(answer, chunk)) is not None:
                done = {} if answer.completion is None else {"metrics": self._measured([answer])}
                yield self._event([choice], {**extra, **done})
        if self._prepared.include_usage:
            yield self._event([], {"usage": self._usage()})

    def _piece(self, answer: Answer, chunk: Chunk) -> dict[str, Any] | None:
        """A choice to send for a step; None where there is nothing to say yet."""
        prepared = self._prepared
        choice = self._form.delta(answer, chunk, prepared, self._tokenizer)
        if choice is None:
            return None
        choice["finish_reason"] = self._form.reason(answer, prepared)
        if prepared.trace:
            choice["outrider"] = {
                "tokens": answers.token_traces(self._tokenizer, chunk),
                "step": answers.step_trace(self._tokenizer, chunk.step, chunk.seconds),
            }
        return choice

    def _take(self, chunk: Chunk) -> Answer:
        answer = self._answers[chunk.index]
        answer.take(chunk)
        self._caller.spend(len(chunk.token_ids))
        self._metrics.gained(answer, chunk, self._record.started)
        if answer.completion is not None:
            self._metrics.finished(answer, self._prepared.requests[answer.index], self._record.started)
        return answer

    def _usage(self) -> dict[str, Any]:
        prepared = self._prepared
        return answers.usage(self._answers, prepared.prompt_tokens, prepared.reused if prepared.tells_reused else None)

    def _finish(self) -> None:
        """Note what happened for the log."""
        self._metrics.prompted(self._prepared.prompt_tokens, self._prepared.reused)
        measured = self._measured(self._answers)
        speculation = measured["speculative_decoding"]
        self._record.facts |= {
            "model": self._served.name,
            "prompt_tokens": self._prepared.prompt_tokens,
            "completion_tokens": sum(len(answer.whole.token_ids) for answer in self._answers),
            "choices": len(self._answers),
            "stream": self._prepared.stream,
            "mean_acceptance_length": round(speculation["mean_acceptance_length"], 3),
            "time_to_first_token": round(measured["time_to_first_token"], 4),
        }

    def _measured(self, these: Sequence[Answer]) -> dict[str, Any]:
        return answers.metrics(these, self._record.started, self._prepared.seed)

    def _event(self, choices: list[dict[str, Any]], extra: dict[str, Any]) -> bytes:
        return event({**self._top(self._form.piece, choices), **extra})

    def _top(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": kind, "system_fingerprint": f"outrider-{__version__}", "choices": choices}
