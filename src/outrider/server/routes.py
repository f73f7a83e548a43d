"""The endpoints. Each reads a request, asks the model, and answers."""

from __future__ import annotations

import asyncio
from time import time
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response

from outrider.server.backend import Backend, Served
from outrider.server.chat import ChatForm
from outrider.server.completions import TextForm
from outrider.server.documents import body, errors
from outrider.server.errors import ApiError
from outrider.server.generation import Generation
from outrider.server.metrics import Metrics
from outrider.server.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from outrider.server.reading import read
from outrider.server.responses.asked import ResponsesRequest, as_chat, renamed
from outrider.server.responses.generation import ResponseGeneration
from outrider.server.salts import salt_of
from outrider.server.translate import Job, chat_job, completion_job, encode, encode_chat


def generating(backend: Backend, metrics: Metrics) -> APIRouter:
    """Where text is made."""
    router = APIRouter(prefix="/v1", tags=["generate"])

    @router.post("/chat/completions", openapi_extra=body(ChatRequest), responses=errors(400, 404, 413, 429, 503))
    async def chat_completions(request: HttpRequest) -> Response:
        """Answer a conversation. With `stream`, server-sent events that end with `data: [DONE]`."""
        asked = await read(request, ChatRequest)
        served = backend.served(asked.model)
        job = await asyncio.to_thread(chat_job, served, asked, salt_of(request.scope, asked.cache_salt))
        return await Generation(request, served, job, ChatForm(), metrics).respond()

    @router.post("/completions", openapi_extra=body(CompletionRequest), responses=errors(400, 404, 413, 429, 503))
    async def completions(request: HttpRequest) -> Response:
        """Continue texts, given as such or as token ids."""
        asked = await read(request, CompletionRequest)
        served = backend.served(asked.model)
        job = await asyncio.to_thread(completion_job, served, asked, salt_of(request.scope, asked.cache_salt))
        return await Generation(request, served, job, TextForm(), metrics).respond()

    @router.post("/responses", openapi_extra=body(ResponsesRequest), responses=errors(400, 404, 413, 429, 503))
    async def responses(request: HttpRequest) -> Response:
        """Answer a conversation, in the newer form. Nothing is stored: `previous_response_id` cannot be given."""
        asked = await read(request, ResponsesRequest)
        served = backend.served(asked.model)
        job = await asyncio.to_thread(response_job, served, asked, salt_of(request.scope, asked.cache_salt))
        return await ResponseGeneration(request, served, job, asked, metrics).respond()

    return router


def describing(backend: Backend) -> APIRouter:
    """What model there is, and how it reads text."""
    router = APIRouter(tags=["model"])
    since = int(time())

    def entry(served: Served) -> dict[str, Any]:
        place = served.llm.place
        return {
            "id": served.name,
            "object": "model",
            "created": since,
            "owned_by": "outrider",
            "max_model_len": served.llm.model.max_context,
            "outrider": {
                "drafters": list(served.drafters),
                "default_drafter": served.default_drafter,
                "max_context": served.llm.model.max_context,
                "max_choices": served.service.capacity,
                "dtype": place.precision.name,
                "device": place.device.type,
            },
        }

    @router.get("/v1/models", responses=errors(503))
    async def models() -> JSONResponse:
        """The one model of this server, and the drafters a request may name."""
        return JSONResponse({"object": "list", "data": [entry(backend.served(None))]})

    @router.get("/v1/models/{model:path}", responses=errors(404, 503))
    async def model(model: str) -> JSONResponse:
        """The model by name."""
        return JSONResponse(entry(backend.served(model)))

    @router.post("/tokenize", openapi_extra=body(TokenizeRequest), responses=errors(400, 404, 413, 503))
    async def tokenize(request: HttpRequest) -> JSONResponse:
        """Token ids of a text or a conversation."""
        asked = await read(request, TokenizeRequest)
        served = backend.served(asked.model)
        if (asked.prompt is None) == (asked.messages is None):
            raise ApiError(400, "prompt: give either it or messages", param="prompt")
        tokens = await asyncio.to_thread(_tokens, served, asked)
        return JSONResponse({"count": len(tokens), "max_model_len": served.llm.model.max_context, "tokens": tokens})

    @router.post("/detokenize", openapi_extra=body(DetokenizeRequest), responses=errors(400, 404, 413, 503))
    async def detokenize(request: HttpRequest) -> JSONResponse:
        """The text of token ids."""
        asked = await read(request, DetokenizeRequest)
        served = backend.served(asked.model)
        if max(asked.tokens, default=0) >= (size := served.llm.model.vocab_size):
            raise ApiError(400, f"tokens: {max(asked.tokens)} is outside the vocabulary of {size}", param="tokens")
        return JSONResponse({"prompt": await asyncio.to_thread(served.llm.tokenizer.decode, asked.tokens)})

    return router


def response_job(served: Served, asked: ResponsesRequest, salt: str | None) -> Job:
    try:
        return chat_job(served, as_chat(asked), salt)
    except ApiError as error:
        raise renamed(error) from None


def _tokens(served: Served, asked: TokenizeRequest) -> list[int]:
    if asked.messages is not None:
        return encode_chat(served, asked.messages, asked.add_generation_prompt)
    return encode(served, asked.prompt or "", "prompt", special=asked.add_special_tokens)


def watching(backend: Backend, metrics: Metrics) -> APIRouter:
    """How the server feels."""
    router = APIRouter(tags=["watch"])

    @router.get("/health", responses=errors(503))
    async def health(live: str | None = None) -> JSONResponse:
        """200 once requests are answered, 503 before and after (`status` says why). `?live`: 200 as long as the process
        answers at all."""
        if live is not None:
            return JSONResponse({"status": "alive"})
        return JSONResponse({"status": backend.status}, 200 if backend.status == "ready" else 503)

    @router.get("/metrics")
    async def prometheus() -> Response:
        """For Prometheus."""
        return Response(metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router
