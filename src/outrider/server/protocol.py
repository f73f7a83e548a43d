"""What clients may send: OpenAI's fields, a few that others add, and our own `outrider`.

Types are strict (a number in quotes is no number), and a list is read up to its first fault. Ranges are checked where
the parameters are made, once for library, command line and server. Fields nobody knows are kept aside for `unsupported`
to judge.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from outrider.server.schemas import from_text, modest

_SEED = 2**63
Seed = Annotated[int, Field(ge=-_SEED, lt=_SEED)]
TokenId = Annotated[int, Field(ge=0, lt=_SEED)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True, max_length=1 << 18)]
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]{1,64}$")]
Stop = Annotated[str, Field(max_length=256)]


def modest_together(tools: list[Tool]) -> list[Tool]:
    """The tools as they are; `ValueError` where their schemas together are too large."""
    modest({tool.function.name: tool.function.parameters for tool in tools})
    return tools


class ApiModel(BaseModel):
    """Anything a client sends as JSON."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Ours(BaseModel):
    """Fields of our own: here an unknown name is a mistake."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class SpeculateOptions(_Ours):
    max_nodes: Annotated[int, Field(ge=0, le=1024, description="Most tokens to draft a step.")] | None = None
    drafter: Annotated[str, Field(description="One of those /v1/models lists.")] | None = None
    forced: Annotated[bool, Field(description="Draft what a grammar leaves no choice about.")] = True


class OutriderOptions(_Ours):
    """Control over speculation; it can change the speed, never the text (verify=coupled)."""

    speculate: bool | SpeculateOptions | None = None
    verify: Literal["coupled", "rejection"] = "coupled"
    trace: Annotated[bool, Field(description="Report every token's origin and every step's drafts.")] = False


class StreamOptions(ApiModel):
    include_usage: bool | None = None


class GenerationRequest(ApiModel):
    """What chat and text completions share."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, lt=_SEED)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: Seed | None = None
    stop: Stop | Annotated[list[Stop], Field(fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=1024)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    cache_salt: (
        Annotated[str, Field(min_length=1, max_length=1024, description="Share work with these only.")] | None
    ) = None
    priority: Annotated[int, Field(ge=-_SEED, lt=_SEED, description="The caller's lowest go first.")] | None = None
    outrider: OutriderOptions | None = None


class ContentPart(ApiModel):
    type: str
    text: str | None = None


Content = str | Annotated[list[ContentPart], Field(fail_fast=True, max_length=1024)]


class CalledFunction(ApiModel):
    name: FunctionName
    arguments: str = "{}"


class ToolCall(ApiModel):
    """A call that an earlier answer made."""

    id: Annotated[str, Field(max_length=256)]
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(ApiModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=1024)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256, description="Which call a tool's message answers.")] | None = (
        None
    )
    name: str | None = None


Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=4096)]


class ToolFunction(ApiModel):
    name: FunctionName
    description: str | None = None
    parameters: Annotated[dict[str, Any] | None, AfterValidator(modest)] = None
    strict: bool | None = None


class Tool(ApiModel):
    type: Literal["function"]
    function: ToolFunction


class ChosenFunction(ApiModel):
    name: str


class ChosenTool(ApiModel):
    type: Literal["function"]
    function: ChosenFunction


Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=128), AfterValidator(modest_together)]


class JsonSchema(ApiModel):
    name: str | None = None
    schema_: Annotated[dict[str, Any] | bool | None, Field(alias="schema"), AfterValidator(modest)] = None
    strict: bool | None = None


class ResponseFormat(ApiModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


GivenSchema = Annotated[dict[str, Any], BeforeValidator(from_text), AfterValidator(modest)]


class StructuredOutputs(ApiModel):
    """vLLM's spelling of what an answer must look like: one of these."""

    json_: Annotated[GivenSchema | None, Field(alias="json")] = None
    regex: Annotated[str, Field(max_length=4096)] | None = None
    choice: Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=1024)] | None = None


class Formatted(ApiModel):
    """What an answer must look like, in the spellings there are."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: GivenSchema | None = None
    guided_regex: Annotated[str, Field(max_length=4096)] | None = None
    guided_choice: Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=1024)] | None = None


class Prediction(ApiModel):
    type: Literal["content"]
    content: Content


class ChatRequest(GenerationRequest, Formatted):
    messages: Messages
    chat_template_kwargs: Annotated[dict[str, Any], Field(description="Variables of the model's template.")] | None = (
        None
    )
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    prediction: Prediction | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None


class CompletionRequest(GenerationRequest, Formatted):
    prompt: (
        str
        | Annotated[list[str], Field(fail_fast=True, max_length=1024)]
        | TokenIds
        | Annotated[list[TokenIds], Field(fail_fast=True, max_length=1024)]
    )
    best_of: Annotated[int, Field(ge=1, lt=_SEED, description="Draw so many, and tell the n likeliest.")] | None = None
    echo: bool | None = None
    logprobs: int | None = None
    prompt_logprobs: Annotated[int, Field(description="Of the prompt's tokens, and so many alternatives.")] | None = (
        None
    )
    prediction: Prediction | None = None


class TokenizeRequest(ApiModel):
    """Either a text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True


class DetokenizeRequest(ApiModel):
    model: str | None = None
    tokens: TokenIds
