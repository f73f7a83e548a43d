"""Errors that nobody awaits, in the log's form instead of asyncio's own."""

from __future__ import annotations

import asyncio
import logging
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM
from typing import Any

from outrider.server.seldom import Seldom

log = logging.getLogger("outrider.server")


def catch_strays(loop: asyncio.AbstractEventLoop) -> None:
    """A machine out of files or memory for connections is told of seldom: asyncio says so at every try to accept one,
    a hundred times a second."""
    full = Seldom()

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
            full.log("no connection can be accepted", reason=error.strerror)
        else:
            log.error(context["message"], exc_info=error)

    loop.set_exception_handler(handle)
