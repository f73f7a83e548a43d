"""The command line, in this process."""

from __future__ import annotations

import sys

from outrider.cli.main import main


def command(*arguments: str) -> int:
    """The exit code, in this process."""
    before, sys.argv = sys.argv, ["outrider", *arguments]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
    return 0
