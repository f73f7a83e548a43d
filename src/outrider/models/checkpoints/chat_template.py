"""Renders a conversation with the template a model brings along, in the dialect transformers defined.

Templates come with downloaded models, so they run in jinja2's sandbox and see plain data only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from outrider.errors import InvalidRequest, ModelError

if TYPE_CHECKING:
    from jinja2 import Environment, Template


class ChatTemplate:
    """`variables` are the special tokens a template may name (`bos_token`, `eos_token`, …)."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        self.source = source
        self._variables = dict(variables)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The conversation as the text the model was trained on. `tools`: functions it may call, as OpenAI writes
        them. `variables`: others that the template may know; they replace none of these."""
        from jinja2 import TemplateError

        if not messages:
            raise InvalidRequest("messages must hold at least one message")
        for i, message in enumerate(messages):
            if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
                raise InvalidRequest(f"messages[{i}] must have a role and a content, both strings")
        template = self._template
        try:
            return template.render(
                {
                    **variables,
                    "messages": [dict(message) for message in messages],
                    "tools": None if tools is None else [dict(tool) for tool in tools],
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                    **self._variables,
                }
            )
        except TemplateError as error:
            raise InvalidRequest(f"messages: the model's chat template refuses them: {error}") from error
        except Exception as error:  # a template is a program; whatever it trips over, it is the template's doing
            if variables:
                raise InvalidRequest(f"messages: the chat template fails with these variables: {error}") from error
            raise ModelError(f"the model's chat template fails on these messages: {error}.") from error

    @cached_property
    def _template(self) -> Template:
        from jinja2 import TemplateSyntaxError

        try:
            return _environment().from_string(self.source)
        except TemplateSyntaxError as error:
            raise ModelError(f"the model's chat template is not valid: {error}; use --raw to go without.") from error


def _environment() -> Environment:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}…{% endgeneration %}` marks what to train on; here it means nothing."""

        tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance attribute)

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def strftime_now(format_: str) -> str:
        return datetime.now().strftime(format_)

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        # jinja2's own filter escapes HTML, which models were not trained on.
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment
