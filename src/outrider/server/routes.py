"""The endpoints. Each reads a request, asks the model, and answers."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Depends
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response

from outrider.server.callers import Caller, caller_of, within_limits
from outrider.server.chat import ChatForm
from outrider.server.completions import TextForm
from outrider.server.errors import ApiError
from outrider.server.generation import Generation
from outrider.server.metrics import Metrics
from outrider.server.models import Models
from outrider.server.openapi import body, errors
from outrider.server.parse import read
from outrider.server.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from outrider.server.responses.asked import ResponsesRequest, as_chat, renamed
from outrider.server.responses.generation import ResponseGeneration
from outrider.server.served import Served
from outrider.server.translate import PreparedRequest, encode, encode_chat, prepare_chat, prepare_completion


def generating(models: Models, metrics: Metrics) -> APIRouter:
    """Where text is made."""
    router = APIRouter(prefix="/v1", tags=["generate"], dependencies=[Depends(within_limits)])

    @router.post("/chat/completions", openapi_extra=body(ChatRequest), responses=errors(400, 404, 413, 429, 503))
    async def chat_completions(request: HttpRequest) -> Response:
        """Answer a conversation. With `stream`, server-sent events that end with `data: [DONE]`."""
        asked = await read(request, ChatRequest)
        async with models.served(asked.model) as served:
            prepared = await asyncio.to_thread(prepare_chat, served, asked, caller_of(request.scope))
            return await Generation(request, served, prepared, ChatForm(), metrics.of(served.name)).respond()

    @router.post("/completions", openapi_extra=body(CompletionRequest), responses=errors(400, 404, 413, 429, 503))
    async def completions(request: HttpRequest) -> Response:
        """Continue texts, given as such or as token ids."""
        asked = await read(request, CompletionRequest)
        async with models.served(asked.model) as served:
            prepared = await asyncio.to_thread(prepare_completion, served, asked, caller_of(request.scope))
            return await Generation(request, served, prepared, TextForm(), metrics.of(served.name)).respond()

    @router.post("/responses", openapi_extra=body(ResponsesRequest), responses=errors(400, 404, 413, 429, 503))
    async def responses(request: HttpRequest) -> Response:
        """Answer a conversation, in the newer form. Nothing is stored: `previous_response_id` cannot be given."""
        asked = await read(request, ResponsesRequest)
        async with models.served(asked.model) as served:
            prepared = await asyncio.to_thread(prepare_response, served, asked, caller_of(request.scope))
            return await ResponseGeneration(request, served, prepared, asked, metrics.of(served.name)).respond()

    return router


def describing(models: Models) -> APIRouter:
    """What models there are, and how they read text."""
    router = APIRouter(tags=["model"])

    @router.get("/v1/models", responses=errors(503))
    async def all_models() -> JSONResponse:
        """The models of this server, the default first: what each can do, and the drafters a request may name."""
        return JSONResponse({"object": "list", "data": models.cards})

    @router.get("/v1/models/{model:path}", responses=errors(404, 503))
    async def model(model: str) -> JSONResponse:
        """A model by name."""
        return JSONResponse(models.card(model))

    @router.post("/tokenize", openapi_extra=body(TokenizeRequest), responses=errors(400, 404, 413, 503))
    async def tokenize(request: HttpRequest) -> JSONResponse:
        """Token ids of a text or a conversation."""
        asked = await read(request, TokenizeRequest)
        async with models.served(asked.model) as served:
            if (asked.prompt is None) == (asked.messages is None):
                raise ApiError(400, "prompt: give either it or messages", param="prompt")
            tokens = await asyncio.to_thread(_tokens, served, asked)
            return JSONResponse({"count": len(tokens), "max_model_len": served.llm.model.max_context, "tokens": tokens})

    @router.post("/detokenize", openapi_extra=body(DetokenizeRequest), responses=errors(400, 404, 413, 503))
    async def detokenize(request: HttpRequest) -> JSONResponse:
        """The text of token ids."""
        asked = await read(request, DetokenizeRequest)
        async with models.served(asked.model) as served:
            if max(asked.tokens, default=0) >= (size := served.llm.model.vocab_size):
                raise ApiError(400, f"tokens: {max(asked.tokens)} is outside the vocabulary of {size}", param="tokens")
            return JSONResponse({"prompt": await asyncio.to_thread(served.llm.tokenizer.decode, asked.tokens)})

    return router


def prepare_response(served: Served, asked: ResponsesRequest, caller: Caller) -> PreparedRequest:
    try:
        return prepare_chat(served, as_chat(asked), caller)
    except ApiError as error:
        raise renamed(error) from None


def _tokens(served: Served, asked: TokenizeRequest) -> list[int]:
    if asked.messages is not None:
        return encode_chat(served, asked.messages, asked.add_generation_prompt)
    return encode(served, asked.prompt or "", "prompt", special=asked.add_special_tokens)


def watching(models: Models, metrics: Metrics) -> APIRouter:
    """How the server feels."""
    router = APIRouter(tags=["watch"])

    @router.get("/health", responses=errors(503))
    async def health(live: str | None = None) -> JSONResponse:
        """200 once requests are answered, 503 before and after (`status` says why). `?live`: 200 unless only a new
        process can help."""
        if live is not None and models.status != "failed":
            return JSONResponse({"status": "alive"})
        return JSONResponse({"status": models.status}, 200 if models.status == "ready" else 503)

    @router.get("/metrics")
    async def prometheus(request: HttpRequest) -> Response:
        """For Prometheus. An admin key, and `--metrics-port`, also see what was reused."""
        page = metrics.page(admin=caller_of(request.scope).admin)
        return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")

    return router
