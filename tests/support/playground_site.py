"""The playground's files without a model behind them, and a live server with one."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import outrider

KEY = "a key for tests"
_SERVER = Path(outrider.__file__).parent / "server"
_PATIENCE = 120.0


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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run = "from outrider.cli.main import main; main()"
    limited = ["sh", "-c", f'ulimit -n {files}; exec "$0" "$@"'] if files else []
    server = subprocess.Popen([*limited, sys.executable, "-c", run, "serve", "--port", str(port), *options])
    try:
        _ready(f"http://127.0.0.1:{port}/", server)
        yield f"http://127.0.0.1:{port}/", server
    finally:
        server.terminate()
        server.wait(timeout=60)


def _ready(address: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with status {server.returncode} before it answered")
        try:
            with urllib.request.urlopen(address + "health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            pass
        time.sleep(0.2)
    raise RuntimeError("the server did not get ready in time")
