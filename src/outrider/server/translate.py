"""From a request to requests for the engine. Runs in a thread: long prompts take a while to encode."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from outrider.core.draft import Speculation
from outrider.core.request import Chunk
from outrider.engine.request import Request
from outrider.errors import InvalidRequest
from outrider.sampling.params import SamplingParams
from outrider.server.callers import Caller
from outrider.server.errors import ApiError, as_api_error
from outrider.server.protocol import (
    ChatRequest,
    CompletionRequest,
    Content,
    GenerationRequest,
    Message,
    OutriderOptions,
    Prediction,
    SpeculateOptions,
    Tool,
)
from outrider.server.served import Served
from outrider.server.structured import Wanted, wanted_by
from outrider.server.tools.conversation import conversation
from outrider.server.tools.toolbox import Toolbox, toolbox

_MAX_STOPS = 16
_MAX_BIASES = 1024
_COMPLETION_TOKENS = 16
"""OpenAI's default for text completions; a chat answer may fill the context."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request, ready to run. Choice k of prompt p is request p * drawn + k."""

    requests: Sequence[Request]
    n: int
    """Answers to each prompt that the client gets, the likeliest of those `drawn`."""
    drawn: int
    prompt_tokens: int
    seed: int
    logprobs: bool
    trace: bool
    stream: bool
    include_usage: bool
    echoes: Sequence[str | None]
    """Per request, the text to repeat before the answer; None: nothing is."""
    prompt_logprobs: bool = False
    """Whether they are told apart from those of the answer."""
    tools: Toolbox | None = None
    """What the answers may call."""
    tells_reused: bool = False
    """Whether the client may know how much of its prompts was there already: then nobody else's work was used."""

    @property
    def reused(self) -> int:
        """Tokens of the prompts that were there before the request. Further choices find what the first left."""
        return sum(request.reused or 0 for request in self.requests[:: self.drawn])


def says_more(chunk: Chunk, prepared: PreparedRequest) -> bool:
    """Whether what a step brought is to be told of even without text."""
    return bool(chunk.completion or prepared.trace or chunk.logprobs)


def prepare_chat(served: Served, asked: ChatRequest, caller: Caller) -> PreparedRequest:
    if asked.top_logprobs is not None and not asked.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    if asked.max_tokens is not None and asked.max_completion_tokens not in (None, asked.max_tokens):
        raise ApiError(400, "max_completion_tokens: give it or max_tokens, not both", param="max_completion_tokens")
    most = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
    logprobs = (asked.top_logprobs or 0) if asked.logprobs else None
    wanted = wanted_by(asked)
    tools = toolbox(asked, served.dialect, served.llm.tokenizer.control_tokens, wanted.grammar)
    variables = asked.chat_template_kwargs or {}
    prompt = encode_chat(served, asked.messages, tools=tools.tools if tools else (), variables=variables)
    wanted = Wanted(tools.grammar, "tools") if tools else wanted
    return _prepare(served, asked, caller, [prompt], [None], most, logprobs, wanted, tools)


def prepare_completion(served: Served, asked: CompletionRequest, caller: Caller) -> PreparedRequest:
    scored = _scored(asked)
    several = _prompts(asked.prompt)
    if not several:
        raise ApiError(400, "prompt: it is empty; give at least one token of text", param="prompt")
    drawn = _drawn(asked)
    _check_number(served, drawn * len(several))  # before they are encoded
    prompts = [encode(served, prompt, "prompt") if isinstance(prompt, str) else prompt for prompt in several]
    echoes: list[str | None] = [None] * len(prompts)
    if asked.echo:
        decode = served.llm.tokenizer.decode
        echoes = [prompt if isinstance(prompt, str) else decode(prompt) for prompt in several]
    most = _COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens
    wanted = wanted_by(asked)
    return _prepare(
        served, asked, caller, prompts, echoes, most, asked.logprobs, wanted, prompt_logprobs=scored, drawn=drawn
    )


def _drawn(asked: CompletionRequest) -> int:
    """Answers to draw for each prompt."""
    n = asked.n or 1
    if asked.best_of is None or asked.best_of == n:
        return n
    if asked.best_of < n:
        raise ApiError(400, f"best_of: {asked.best_of} cannot be fewer than n, which is {n}", param="best_of")
    if asked.stream:
        raise ApiError(400, "stream: which answers are best is known at the end of all; leave it out", param="stream")
    return asked.best_of


def _scored(asked: CompletionRequest) -> int | None:
    """How many alternatives to tell for each token of the prompt; None: nothing is asked about them."""
    wanted = [count for count in (asked.prompt_logprobs, asked.logprobs if asked.echo else None) if count is not None]
    if wanted and asked.stream:
        raise ApiError(400, "stream: log-probabilities of the prompt are told in whole answers only", param="stream")
    return max(wanted) if wanted else 0 if asked.echo and asked.max_tokens == 0 else None


def _prompts(given: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    if isinstance(given, str):
        return [given]
    ids = [item for item in given if isinstance(item, int)]
    return [ids] if ids else [item for item in given if not isinstance(item, int)]


_TOO_LONG = "context_length_exceeded"


def _too_long(served: Served, what: str, param: str | None) -> ApiError:
    """In words by which clients know it: some go on with a shorter conversation then."""
    most = served.llm.model.max_context
    return ApiError(400, f"{what}; this model's maximum context length is {most} tokens", param=param, code=_TOO_LONG)


def encode(served: Served, text: str, param: str, *, special: bool = True) -> list[int]:
    """Token ids of a text that may fit."""
    if len(text) > served.longest_text:
        raise _too_long(served, f"{param}: the text leaves no room in a context", param)
    return served.llm.tokenizer.encode(text, add_special_tokens=special)


def encode_chat(
    served: Served,
    messages: Sequence[Message],
    generate: bool = True,
    tools: Sequence[Tool] = (),
    variables: Mapping[str, Any] = MappingProxyType({}),
) -> list[int]:
    texts = [_said(message, f"messages[{i}]") for i, message in enumerate(messages)]
    if sum(map(len, texts)) > served.longest_text:
        raise _too_long(served, "messages: they leave no room in a context", "messages")
    plain, known = conversation(served.dialect, messages, texts, tools)
    try:
        return served.llm.tokenizer.apply_chat_template(plain, generate, known, variables)
    except InvalidRequest as error:
        raise ApiError(400, str(error).replace("prompt:", "messages:"), param="messages") from None


def _said(message: Message, place: str) -> str:
    """A message's text; one that makes calls needs none."""
    if message.role == "tool" and message.tool_call_id is None:
        raise ApiError(400, f"{place}.tool_call_id is required", param=f"{place}.tool_call_id")
    return "" if message.tool_calls and message.content is None else _text(message.content, f"{place}.content")


def _text(content: Content | None, place: str) -> str:
    """Content as text; parts follow one another."""
    if content is None:
        raise ApiError(400, f"{place} is required", param=place)
    if isinstance(content, str):
        return content
    for i, part in enumerate(content):
        if part.type != "text":
            here = f"{place}[{i}].type"
            raise ApiError(400, f"{here}: only parts of type text are supported", param=here)
        if part.text is None:
            raise ApiError(400, f"{place}[{i}].text is required", param=f"{place}[{i}].text")
    return "".join(part.text or "" for part in content)


def _prepare(
    served: Served,
    asked: ChatRequest | CompletionRequest,
    caller: Caller,
    prompts: Sequence[Sequence[int]],
    echoes: Sequence[str | None],
    max_tokens: int | None,
    logprobs: int | None,
    wanted: Wanted,
    tools: Toolbox | None = None,
    prompt_logprobs: int | None = None,
    drawn: int | None = None,
) -> PreparedRequest:
    n, options = asked.n or 1, asked.outrider or OutriderOptions()
    drawn = drawn or n
    _check_number(served, drawn * len(prompts))
    seed = secrets.randbits(53) if asked.seed is None else asked.seed  # 53 bits survive JSON
    speculation = _speculation(served, options, asked.prediction)
    fields = {*type(asked).model_fields, "n"}
    try:
        params = SamplingParams(
            **_sampling(asked, served.llm.generation_config),
            max_tokens=max_tokens,
            logprobs=0 if logprobs is None and drawn > n else logprobs,
            prompt_logprobs=prompt_logprobs,
            seed=seed,
            verify=options.verify,
            grammar=wanted.grammar,
        )
        requests = [
            served.llm.requests.build(
                prompt,
                params,
                choice=k,
                speculation=speculation,
                cache_salt=caller.salt(asked.cache_salt),
                principal=caller.principal,
                priority=asked.priority or 0,
                trace=options.trace,
                shown=tools.shown if tools else (),
            )
            for prompt in prompts
            for k in range(drawn)
        ]
    except InvalidRequest as error:
        names = {"grammar": wanted.field, "drafter": "outrider.speculate.drafter"}
        if isinstance(asked, ChatRequest):
            names |= {"prompt": "messages", "logprobs": "top_logprobs"}
            names |= {"max_tokens": "max_completion_tokens"} if asked.max_tokens is None else {}
        told = _renamed(as_api_error(error, fields | set(names)), names)
        raise told if told.code != _TOO_LONG else _too_long(served, told.message, told.param) from None
    return PreparedRequest(
        requests=requests,
        n=n,
        drawn=drawn,
        prompt_tokens=sum(map(len, prompts)),
        seed=seed,
        logprobs=logprobs is not None,
        trace=options.trace,
        stream=bool(asked.stream),
        include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
        echoes=[echo for echo in echoes for _ in range(drawn)],
        prompt_logprobs=isinstance(asked, CompletionRequest) and asked.prompt_logprobs is not None,
        tools=tools,
        tells_reused=bool(caller.name or asked.cache_salt),
    )


def _check_number(served: Served, answers: int) -> None:
    if answers > (most := served.service.capacity):
        raise ApiError(400, f"n: at most {most} answers fit into one request, over all its prompts", param="n")


def _renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """An error of the library in the client's words. `names`: the library's for what clients call otherwise."""
    name = error.param or ""
    if name not in names:
        return error
    message = re.sub(rf"\b{name}\b", names[name], error.message, count=1)
    return ApiError(400, message, param=names[name], code=error.code)


_SAME_NAME = (
    *("top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"),
    *("min_tokens", "ignore_eos", "stop_token_ids"),
)


def _sampling(asked: GenerationRequest, generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters by the library's names. A temperature that is not given is the model's own, else OpenAI's 1;
    whatever else is not given is the library's default."""
    given = {name: value for name in _SAME_NAME if (value := getattr(asked, name)) is not None}
    own = generation_config.get("temperature")
    given["temperature"] = asked.temperature if asked.temperature is not None else 1.0 if own is None else own
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    if len(stops) > _MAX_STOPS:
        raise ApiError(400, f"stop: at most {_MAX_STOPS} strings", param="stop")
    given["stop"] = stops
    given["logit_bias"] = _bias(asked.logit_bias or {})
    return given


def _bias(bias: Mapping[str, float]) -> dict[int, float]:
    if len(bias) > _MAX_BIASES:
        raise ApiError(400, f"logit_bias: at most {_MAX_BIASES} tokens", param="logit_bias")
    for token in bias:
        if not re.fullmatch(r"\d{1,12}", token, re.ASCII):
            raise ApiError(400, f"logit_bias: {token[:40]!r} is not a token id", param="logit_bias")
    return {int(token): value for token, value in bias.items()}


def _speculation(served: Served, options: OutriderOptions, prediction: Prediction | None) -> Speculation:
    wanted = options.speculate
    asked = wanted if isinstance(wanted, SpeculateOptions) else SpeculateOptions()
    name = asked.drafter
    if name is not None and name not in served.drafters:
        raise ApiError(
            400, f"outrider.speculate.drafter must be one of {', '.join(served.drafters)}",
            param="outrider.speculate.drafter",
        )  # fmt: skip
    predicted: list[int] = []
    if prediction is not None:
        text = _text(prediction.content, "prediction.content")
        predicted = encode(served, text, "prediction.content", special=False)
    return Speculation(
        max_nodes=0 if wanted is False or name == "none" else asked.max_nodes,
        drafter=None if name in ("auto", "none") else name,
        prediction=tuple(predicted),
        forced=asked.forced,
    )
