"""The playground's files without a model behind them, and a live server with one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import outrider

if TYPE_CHECKING:
    from playwright.sync_api import Page

KEY = "a key for tests"
_SERVER = Path(outrider.__file__).parent / "server"
_PATIENCE = 300.0
"""Seconds, for a machine that is busy with something else."""


class _Files(SimpleHTTPRequestHandler):
    extensions_map = {  # noqa: RUF012
        ".js": "text/javascript",
        ".css": "text/css",
        ".html": "text/html",
        ".svg": "image/svg+xml",
    }

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, directory=str(_SERVER))

    def do_GET(self) -> None:
        if self.path == "/":
            self.path = "/playground/index.html"
        super().do_GET()

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def files() -> Iterator[str]:
    """The address of the bare files."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Files)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def live(*options: str) -> Iterator[str]:
    """The address of `outrider serve` with the default model, once it answers."""
    with process(*options) as (address, _):
        yield address


@contextmanager
def process(*options: str, files: int | None = None) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The same and the process that serves there. `files`: as many as it may open."""
    run = "from outrider.cli.main import main; main()"
    limited = ["sh", "-c", f'ulimit -n {files}; exec "$0" "$@"'] if files else []
    # It chooses the port itself: one that was found free beforehand may be somebody else's by the time it listens.
    command = [*limited, sys.executable, "-c", run, "serve", "--port", "0", *options]
    server, address = subprocess.Popen(command, stderr=subprocess.PIPE), Future[str]()
    reading = Thread(target=_pass_on, args=(server, address))
    reading.start()
    try:
        yield address.result(_PATIENCE), server
    finally:
        server.terminate()
        server.wait(_PATIENCE)
        reading.join()


def ask_until_costs_are_shown(page: Page) -> None:
    """On the Costs tab. Costs are measured between decoded tokens and told with a step: a page that asks nothing may
    wait for ever."""
    tables = page.locator("#costs table").all()
    for turn in range(12):
        if all(table.is_visible() for table in tables):
            break
        before = page.locator(".actions").count()
        page.locator("#prompt").fill(f"Tell a story about {turn + 2} foxes.")
        page.locator("#send").click()
        page.locator(".actions").nth(before).wait_for()
        page.wait_for_timeout(2500)  # it looks every two seconds
    for table in tables:
        table.wait_for()


def _pass_on(server: subprocess.Popen[bytes], address: Future[str]) -> None:
    """What the server says, to where this process says such things; the address is told once it answers there."""
    assert server.stderr is not None
    with server.stderr as lines:
        for line in lines:
            os.write(2, line)
            if (found := re.search(rb"served at (http://\S+)", line)) and not address.done():
                address.set_result(f"{found[1].decode()}/")
    if not address.done():
        address.set_exception(RuntimeError("the server ended before it answered"))
