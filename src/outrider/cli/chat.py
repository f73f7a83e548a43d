"""`outrider chat`: a conversation in the terminal, or one message per line from a pipe."""

from __future__ import annotations

import sys

from outrider.cli.answer import Answerer, Conversation, check_text
from outrider.cli.options import Settings, takes_settings
from outrider.errors import InvalidRequest

_HELP = "/reset starts over, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


@takes_settings
def chat(settings: Settings) -> None:
    """Talk with the model; the conversation is remembered.

    /reset starts over, /exit or Ctrl-D leaves, Ctrl-C stops an answer. Piped in, every line is a message.
    """
    answerer = Answerer(settings)
    interactive = sys.stdin.isatty()
    if interactive:
        print(f"{settings.model}: {_HELP}", file=sys.stderr, flush=True)
    history: Conversation = []
    while (line := _next_line(interactive)) is not None:
        command = line.strip()
        if command == "/exit":
            return
        if command == "/reset":
            history.clear()
            if interactive:
                print("(started over)", file=sys.stderr, flush=True)
        elif command.startswith("/") and command[1:].isalpha() and interactive:
            print(_HELP, file=sys.stderr, flush=True)
        elif command:
            _turn(answerer, history, line, interactive)


def _turn(answerer: Answerer, history: Conversation, message: str, interactive: bool) -> None:
    """One message and its answer; an answer that was stopped is remembered as far as it came."""
    history.append({"role": "user", "content": check_text(message)})
    try:
        answerer.answer(answerer.encode(history))
    except KeyboardInterrupt:
        if not interactive:
            raise
        print("(stopped)", file=sys.stderr, flush=True)
    except InvalidRequest as error:  # most likely the conversation has outgrown the context
        if not interactive:
            raise
        history.pop()
        print(f"error: {error} ({_HELP})", file=sys.stderr, flush=True)
        return
    history.append({"role": "assistant", "content": answerer.shown})


def _next_line(interactive: bool) -> str | None:
    """The next message without its line end; None at the end of input. Ctrl-C drops a half-typed line."""
    if not interactive:
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None
    while True:
        try:
            return input("> ")
        except EOFError:
            print(file=sys.stderr)
            return None
        except KeyboardInterrupt:
            print("\n(Ctrl-D or /exit leaves)", file=sys.stderr, flush=True)
