"""What a request says about tools, made into what its answer may be and how it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.sampling.grammar import Grammar
from outrider.server.errors import ApiError
from outrider.server.protocol import ChatRequest, ChosenTool, Tool
from outrider.server.tools.call_parser import CallParser
from outrider.server.tools.dialect import Dialect
from outrider.server.tools.rules import Function, rules, shown


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The functions that an answer may call. `named`: the request names the one to be called, so that the answer is
    that call and ends as any other (OpenAI says `stop` then)."""

    dialect: Dialect
    tools: Sequence[Tool]
    grammar: Grammar
    shown: frozenset[int]
    """Control tokens that calls are told by."""
    named: bool

    def reader(self) -> CallParser:
        return CallParser(self.dialect, [tool.function.name for tool in self.tools])


def toolbox(asked: ChatRequest, dialect: Dialect, control: Mapping[str, int], wanted: Grammar | None) -> Toolbox | None:
    """None: nothing may be called. `control`: tokens without text, by name. `wanted`: what an answer in words must look
    like."""
    choice, tools = asked.tool_choice, list(asked.tools or ())
    if not tools:
        if choice not in (None, "none", "auto"):
            raise ApiError(400, "tool_choice: there are no tools to choose from; give tools", param="tool_choice")
        return None
    functions = {tool.function.name: _function(i, tool) for i, tool in enumerate(tools)}
    if len(functions) < len(tools):
        raise ApiError(400, "tools: two functions have the same name", param="tools")
    if choice == "none":
        return None
    if isinstance(choice, ChosenTool) and choice.function.name not in functions:
        param = "tool_choice.function.name"
        raise ApiError(400, f"{param}: there is no such function among the tools", param=param)
    auto = choice in (None, "auto")
    if auto and wanted is not None and (not dialect.opening or wanted.kind != "json"):
        message = "tool_choice: calls cannot be told from such an answer; give required or none"
        raise ApiError(400, message, param="tool_choice")
    named = choice.function.name if isinstance(choice, ChosenTool) else None
    callable_ = [functions[named]] if named is not None else list(functions.values())
    several = named is None and asked.parallel_tool_calls is not False
    answer = None if wanted is None else json.loads(wanted.source)
    grammar = rules(dialect, callable_, control, text=auto, several=several, answer=answer)
    return Toolbox(dialect, tools, grammar, shown(dialect, control), named is not None)


def _function(place: int, tool: Tool) -> Function:
    given: Mapping[str, Any] = tool.function.parameters or {}
    if given.get("type", "object") != "object":
        param = f"tools[{place}].function.parameters"
        raise ApiError(400, f"{param}: arguments are an object, so its type must be object", param=param)
    return Function(tool.function.name, {"properties": {}, **given, "type": "object"})
