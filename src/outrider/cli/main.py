"""The `outrider` command. Thin and lazy: `--help` never imports torch."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from outrider import __version__
from outrider.cli.chat import chat
from outrider.cli.generate import generate
from outrider.cli.help import CONTEXT, HeadedCommand
from outrider.cli.models import models
from outrider.errors import OutriderError

app = typer.Typer(
    name="outrider",
    help="Exact speculative decoding: the text your model would have written, several times sooner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
)
app.command(cls=HeadedCommand)(generate)
app.command(cls=HeadedCommand)(chat)
app.add_typer(models, name="models")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"outrider {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command line. What a person can act on is one sentence on stderr; a traceback is a bug."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="outrider")
    except OutriderError as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader went away. Python flushes stdout once more at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 1)
    except MemoryError:
        _fail("out of memory; try a smaller --max-context or a smaller model", 1)


def _fail(message: str, code: int) -> None:
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(code)
