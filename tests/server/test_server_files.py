"""With few files to open, connections that say nothing must not be all there are."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import playground_site
import pytest
from live_server import PATIENCE, soon
from tiny_llm import tiny_gguf

from outrider.server.connections import ConnectionLimits

FILES, SILENT = 200, 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    model = tiny_gguf(tmp_path_factory.mktemp("tiny"))
    with playground_site.process("--model", str(model), files=FILES) as server:
        yield server


def answered(address: str, source: str) -> bool:
    """Whether a client there is given tokens."""
    with httpx.Client(transport=httpx.HTTPTransport(local_address=source), timeout=PATIENCE) as client:
        try:
            answer = client.post(f"{address}v1/completions", json={"prompt": [30, 31], "max_tokens": 2})
        except httpx.TransportError:
            return False
    return answer.status_code == 200


def test_300_silent_sockets_with_200_files_leave_service_to_others(
    server: tuple[str, subprocess.Popen[bytes]],
) -> None:
    """They are of one address, and have its share: others are served beside them, and it is again soon. The server
    finds all of them at once, as on a machine that is busy: none may cost it its last file."""
    address, process = server
    port = urlsplit(address).port
    with ExitStack() as stack:
        process.send_signal(signal.SIGSTOP)
        stack.callback(process.send_signal, signal.SIGCONT)
        for _ in range(SILENT):
            silent = stack.enter_context(socket.socket())
            silent.settimeout(PATIENCE)
            silent.connect(("127.0.0.1", port))
        let_go = time.monotonic() + ConnectionLimits().head
        process.send_signal(signal.SIGCONT)
        assert answered(address, "127.0.0.2"), "while all of them are open"
        again = answered(address, "127.0.0.1")
        assert not again or time.monotonic() > let_go, "nothing was taken up, and nothing is shown"
        assert answered(address, "127.0.0.3")
        assert soon(lambda: answered(address, "127.0.0.1")), "those who say nothing are let go of"


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "said"),
    [(200, 200, 512, "104 200"), (200, 400, 512, "304 400"), (200, 4096, 512, "512 608"), (1024, 2048, 9, "9 1024")],
)
def test_as_many_connections_as_there_are_files_for(soft: int, hard: int, wanted: int, said: str) -> None:
    program = f"""
import resource
from outrider.server.files import affordable
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(affordable({wanted}), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == said
