"""How a family of models writes function calls, told from its chat template.

All write `{"name": …, "arguments": {…}}`, and differ in what stands around it. A template whose way of calling is not
known here is not given the tools: they are described in a system message, in a form of our own.
"""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """An answer with calls is: text, `opening`, a call, any number of times `between` and a call, `closing`."""

    name: str
    native: bool
    """Whether the template takes tools and calls as they are."""
    opening: str
    """Empty: calls stand at the beginning of an answer or not at all."""
    lead: str
    """Between the opening and the first call."""
    between: str | None
    """None: one call at a time."""
    closing: str
    arguments: str = "arguments"
    """What the arguments are called."""
    id_prefix: str = "call_"
    id_length: int = 24

    def head(self, function: str) -> str:
        """What a call of this function begins with, up to its arguments."""
        return f'{{"name": "{function}", "{self.arguments}": '

    def new_id(self) -> str:
        alphabet = string.ascii_letters + string.digits
        return self.id_prefix + "".join(secrets.choice(alphabet) for _ in range(self.id_length))


_BETWEEN = "\n</tool_call>\n<tool_call>\n"
HERMES = Dialect("hermes", True, "<tool_call>", "\n", _BETWEEN, "\n</tool_call>")
GENERIC = Dialect("generic", False, "<tool_call>", "\n", _BETWEEN, "\n</tool_call>")
LLAMA3 = Dialect("llama3", True, "", "", None, "", "parameters")
MISTRAL = Dialect("mistral", True, "[TOOL_CALLS]", "[", ", ", "]", id_prefix="", id_length=9)
MISTRAL_SPACED = Dialect("mistral", True, "[TOOL_CALLS]", " [", ", ", "]", id_prefix="", id_length=9)

_OTHERS = ("<function=", "<arg_key>", "[ARGS]")
"""Signs of ways that are not known here."""


def dialect_of(template: str | None) -> Dialect:
    """The dialect a chat template is written for."""
    if template is None or "tools" not in template or any(sign in template for sign in _OTHERS):
        return GENERIC
    if "[TOOL_CALLS]" in template:
        return MISTRAL_SPACED if "[TOOL_CALLS] [" in template else MISTRAL
    if "<tool_call>" in template and "arguments" in template:
        return HERMES
    if "<|python_tag|>" in template and '"parameters"' in template:
        return LLAMA3
    return GENERIC
