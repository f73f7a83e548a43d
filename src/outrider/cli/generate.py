"""`outrider generate`: one prompt, one answer."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from outrider.cli.answer import Answerer, check_text
from outrider.cli.options import Settings, takes_settings
from outrider.errors import InvalidRequest


@takes_settings
def generate(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The prompt, or - to read it from stdin.")],
    settings: Settings,
) -> None:
    """Answer PROMPT, drafting ahead; coloured tokens were drafted and accepted."""
    text = check_text(_from_stdin() if prompt == "-" else prompt)
    answerer = Answerer(settings)
    answerer.answer(answerer.encode([{"role": "user", "content": text}]))


def _from_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest("prompt: stdin is not valid UTF-8; convert it first") from error
