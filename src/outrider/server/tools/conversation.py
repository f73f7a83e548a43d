"""A conversation with tools in it, as a chat template takes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from outrider.server.errors import ApiError
from outrider.server.protocol import Message, Tool
from outrider.server.tools.dialect import Dialect

Rendered = dict[str, Any]
"""A message as templates read it."""

_SYSTEM = """You can call functions to help with the request. These are the functions:
{functions}

To call one, write its name and its arguments as JSON in this form:
{example}
You get the result in the next message. Where no function is needed, answer in plain words."""


def conversation(
    dialect: Dialect, messages: Sequence[Message], texts: Sequence[str], tools: Sequence[Tool]
) -> tuple[list[Rendered], list[Rendered] | None]:
    """The messages (`texts`: their contents) and the tools to give to the template. Where that does not know tools,
    they are told of in the system message, calls are text as the dialect writes them, results come from the user."""
    if dialect.native:
        rendered = [_native(*each) for each in zip(range(len(texts)), messages, texts, strict=True)]
        return rendered, [tool.model_dump(exclude_none=True) for tool in tools] or None
    rendered = []
    if tools:
        rendered.append({"role": "system", "content": _told(dialect, tools)})
    for i, (message, text) in enumerate(zip(messages, texts, strict=True)):
        plain = _told_plainly(dialect, i, message, text)
        last = rendered[-1] if rendered else None
        # Templates want roles to take turns: several results are one message, as are the system's and ours.
        joins = last is not None and last["role"] == plain["role"] and (message.role == "tool" or i == 0)
        if last is not None and joins:
            last["content"] += f"\n\n{plain['content']}" if i == 0 else f"\n{plain['content']}"
        else:
            rendered.append(plain)
    return rendered, None


def _native(place: int, message: Message, text: str) -> Rendered:
    rendered: Rendered = {"role": _role(message), "content": text}
    if message.tool_calls:
        rendered["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": _arguments(place, i, call.function.arguments)},
            }
            for i, call in enumerate(message.tool_calls)
        ]
    for name in ("tool_call_id", "name"):
        if (value := getattr(message, name)) is not None:
            rendered[name] = value
    return rendered


def _told_plainly(dialect: Dialect, place: int, message: Message, text: str) -> Rendered:
    if message.role == "tool":
        return {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}
    if message.tool_calls:
        calls = [
            dialect.head(call.function.name)
            + json.dumps(_arguments(place, i, call.function.arguments), ensure_ascii=False)
            + "}"
            for i, call in enumerate(message.tool_calls)
        ]
        written = dialect.opening + dialect.lead + (dialect.between or "\n").join(calls) + dialect.closing
        return {"role": "assistant", "content": f"{text}\n{written}" if text else written}
    return {"role": _role(message), "content": text}


def _told(dialect: Dialect, tools: Sequence[Tool]) -> str:
    functions = "\n".join(
        json.dumps(tool.function.model_dump(exclude_none=True, exclude={"strict"}), ensure_ascii=False)
        for tool in tools
    )
    call = dialect.head("NAME") + "{…}}"
    return _SYSTEM.format(functions=functions, example=dialect.opening + dialect.lead + call + dialect.closing)


def _arguments(place: int, call: int, arguments: str) -> Mapping[str, Any]:
    """Templates write arguments themselves, so they are read."""
    param = f"messages[{place}].tool_calls[{call}].function.arguments"
    try:
        read = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        raise ApiError(400, f"{param}: it is not JSON", param=param) from None
    if not isinstance(read, dict):
        raise ApiError(400, f"{param}: it must be a JSON object", param=param)
    return read


def _role(message: Message) -> str:
    return "system" if message.role == "developer" else message.role
