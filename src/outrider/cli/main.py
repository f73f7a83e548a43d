"""The `outrider` command: runs the commands and turns what goes wrong into a sentence and an exit code.

Imports nothing heavy itself, so that Ctrl-C is handled from the first moment.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from outrider.errors import OutriderError


def main() -> None:
    """What a person can act on becomes one sentence on stderr; a traceback is a bug."""
    try:
        from outrider.cli.app import app

        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark
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
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's own; not imported here
            raise
        _fail("the GPU is out of memory; try a smaller --max-context, a smaller model or --device cpu", 1)


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(code)
