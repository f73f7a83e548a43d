"""What clients may send to /v1/responses, and the same as a chat."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from outrider.server.errors import ApiError
from outrider.server.protocol import (
    ApiModel,
    CalledFunction,
    ChatRequest,
    ChosenFunction,
    ChosenTool,
    ContentPart,
    JsonSchema,
    Message,
    OutriderOptions,
    ResponseFormat,
    Seed,
    Tool,
    ToolCall,
    ToolFunction,
)


class Item(ApiModel):
    """A message, a call that an earlier answer made, or what came of one."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | Annotated[list[ContentPart], Field(fail_fast=True, max_length=1024)] | None = None
    call_id: Annotated[str, Field(max_length=256)] | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | Annotated[list[ContentPart], Field(fail_fast=True, max_length=1024)] | None = None


class NamedFunction(ToolFunction):
    type: Literal["function"]


class ChosenByName(ApiModel):
    type: Literal["function"]
    name: str


class NamedSchema(JsonSchema):
    type: Literal["text", "json_object", "json_schema"]


class TextOptions(ApiModel):
    format: NamedSchema | None = None


class ResponsesRequest(ApiModel):
    model: str | None = None
    input: str | Annotated[list[Item], Field(fail_fast=True, min_length=1, max_length=4096)]
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: TextOptions | None = None
    tools: Annotated[list[NamedFunction], Field(fail_fast=True, max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenByName | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: None = None
    background: Literal[False] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    priority: Seed | None = None
    outrider: OutriderOptions | None = None


def as_chat(asked: ResponsesRequest) -> ChatRequest:
    """The same request in the form of a chat."""
    messages = [Message(role="user", content=asked.input)] if isinstance(asked.input, str) else _messages(asked.input)
    if asked.instructions is not None:
        messages.insert(0, Message(role="system", content=asked.instructions))
    choice = asked.tool_choice
    return ChatRequest(
        model=asked.model,
        messages=messages,
        stream=asked.stream,
        max_completion_tokens=asked.max_output_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        response_format=_format(asked.text),
        tools=[Tool(type="function", function=_function(tool)) for tool in asked.tools or ()] or None,
        tool_choice=_chosen(choice.name) if isinstance(choice, ChosenByName) else choice,
        parallel_tool_calls=asked.parallel_tool_calls,
        cache_salt=asked.cache_salt,
        priority=asked.priority,
        outrider=asked.outrider,
    )


_OURS = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}
"""A chat's names for what is called otherwise here."""


def renamed(error: ApiError) -> ApiError:
    """An error of the chat in the words of this request."""
    name = _OURS.get(error.param or "")
    if name is None:
        return error
    message = error.message.replace(str(error.param), name, 1)
    return ApiError(error.status, message, param=name, code=error.code, reason=error.reason)


def _function(tool: NamedFunction) -> ToolFunction:
    return ToolFunction(name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict)


def _chosen(name: str) -> ChosenTool:
    return ChosenTool(type="function", function=ChosenFunction(name=name))


def _format(text: TextOptions | None) -> ResponseFormat | None:
    if text is None or text.format is None:
        return None
    schema = JsonSchema.model_construct(name=text.format.name, schema_=text.format.schema_)  # checked already
    return ResponseFormat(type=text.format.type, json_schema=schema)


def _messages(items: list[Item]) -> list[Message]:
    messages: list[Message] = []
    for i, item in enumerate(items):
        match item.type:
            case "message":
                content = [_text(part) for part in item.content] if isinstance(item.content, list) else item.content
                role = _needed(item.role, f"input[{i}].role")
                messages.append(Message(role=role, content=_needed(content, f"input[{i}].content")))
            case "function_call":
                call = ToolCall(
                    id=_needed(item.call_id, f"input[{i}].call_id"),
                    function=CalledFunction(
                        name=_needed(item.name, f"input[{i}].name"), arguments=item.arguments or "{}"
                    ),
                )
                last = messages[-1] if messages else None
                if last is not None and last.role == "assistant":  # text and calls of one answer are one message
                    last.tool_calls = [*(last.tool_calls or ()), call]
                else:
                    messages.append(Message(role="assistant", tool_calls=[call]))
            case "function_call_output":
                said = [_text(part) for part in item.output] if isinstance(item.output, list) else item.output
                said = _needed(said, f"input[{i}].output")
                called = _needed(item.call_id, f"input[{i}].call_id")
                messages.append(Message(role="tool", tool_call_id=called, content=said))
            case "reasoning":  # no template here has a place for it
                pass
    if not messages:
        raise ApiError(400, "input: there is no message in it", param="input")
    return messages


def _text(part: ContentPart) -> ContentPart:
    kind = "text" if part.type in ("input_text", "output_text") else part.type
    return ContentPart(type=kind, text=part.text)


def _needed(value: Any, param: str) -> Any:
    if value is None:
        raise ApiError(400, f"{param} is required", param=param)
    return value
