"""One IPv6 household is one client, however many addresses it uses: real connections, in a network of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio
from socket import AF_INET6
from uvicorn import Config
from uvicorn.server import ServerState
from outrider.server.connections import ConnectionLimits, connections

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})

async def main():
    config, state = Config(app, lifespan="off", log_config=None), ServerState()
    config.load()
    make = connections(ConnectionLimits(connections=8, per_address=2))
    loop = asyncio.get_running_loop()
    one = lambda: make(config=config, server_state=state, app_state={})
    server = await loop.create_server(one, "::", 0, family=AF_INET6)
    port = server.sockets[0].getsockname()[1]
    held = []
    for source in ("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"):
        reader, writer = await asyncio.open_connection("2001:db8::1", port, local_addr=(source, 0))
        writer.write(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        print((await reader.readline()).split()[1].decode(), end=" ", flush=True)
        held.append(writer)

asyncio.run(main())
"""
NETWORK = (
    "ip link set lo up && "
    "for a in 2001:db8::1 2001:db8::2 2001:db8::3 2001:db8:0:1::1; do ip -6 addr add $a/128 dev lo nodad; done"
)


def in_a_network_of_its_own(command: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["unshare", "--map-root-user", "--net", "sh", "-c", command, *words],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_a_household_has_its_share_of_connections_whatever_its_addresses() -> None:
    if not shutil.which("unshare") or not shutil.which("ip") or in_a_network_of_its_own(NETWORK).returncode:
        pytest.skip("no network namespaces, or no IPv6, here")
    done = in_a_network_of_its_own(f'{NETWORK} && exec "$0" -c "$1"', sys.executable, PROGRAM)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["200", "200", "503", "200"]
