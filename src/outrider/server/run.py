"""Listens, loads the default model, serves until told to stop, and drains."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from errno import EACCES, EADDRINUSE

import uvicorn
from fastapi import FastAPI

from outrider.errors import DeviceLost, InvalidRequest
from outrider.server.connections import ConnectionLimits, connections
from outrider.server.models import Models
from outrider.server.strays import catch_strays

GRACE = 30.0
"""Seconds that requests have to finish once the server is told to stop."""
_BACKLOG = 1024
"""Connections that wait to be accepted."""
_AT_ONCE = 8
"""Connections accepted before any limit on them is looked at: each takes a file until then, and where none is left
asyncio accepts nobody for a second."""
_SWITCH = 0.0005
"""Seconds until another thread may take over from one that runs Python: what the loop does must not hold up the
engine's next pass for Python's usual 5 ms."""


def listen(host: str, port: int) -> socket.socket:
    """A socket to serve on; port 0: any that is free."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InvalidRequest(f"host: {host!r} is no address of this machine ({error.strerror}).") from error
    # asyncio switches Nagle's delay off for sockets that say they are TCP, and for no others.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == EADDRINUSE:
            raise InvalidRequest(f"port {port} of {host} is in use already; choose another with --port.") from error
        if error.errno == EACCES:
            raise InvalidRequest(f"port {port} needs more rights than you have; choose one from 1024 on.") from error
        raise InvalidRequest(f"cannot listen on {host}, port {port}: {error.strerror}.") from error
    return listener


class Lost(DeviceLost):
    """The GPU is, to this process; `listeners` are open still."""

    def __init__(self, error: DeviceLost, listeners: list[socket.socket]) -> None:
        super().__init__(*error.args)
        self.listeners = listeners


class Server(uvicorn.Server):
    """Drains the engine first: then nothing is left for connections to wait for. A second Ctrl-C does not wait. Ends by
    itself where only another process can answer; whoever comes meanwhile waits in `kept`."""

    def __init__(
        self, app: FastAPI, models: Models, grace: float = GRACE, limits: ConnectionLimits | None = None
    ) -> None:
        limits = limits or ConnectionLimits()
        super().__init__(
            uvicorn.Config(
                app,
                http=connections(limits),
                ws="none",
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                proxy_headers=bool(limits.proxies),
                forwarded_allow_ips=[str(network) for network in limits.proxies],
                backlog=_AT_ONCE,
                timeout_keep_alive=limits.idle,
                timeout_graceful_shutdown=5,
            )
        )
        self._models = models
        self._grace = grace
        self.kept: list[socket.socket] = []
        """What it listened on, for the server after it; empty: none is to follow."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        catch_strays(asyncio.get_running_loop())
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)  # asyncio has one number for how many wait and how many it accepts at once

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._models.lost is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._models.lost is not None:
            self.kept = [listener.dup() for listener in sockets or ()]
        draining = asyncio.ensure_future(self._models.stop(self._grace))
        while not draining.done() and not self.force_exit:
            await asyncio.wait({draining}, timeout=0.1)
        if not draining.done():
            await self._models.stop(0)
        await super().shutdown(sockets)


def serve(
    app: FastAPI,
    models: Models,
    listeners: list[socket.socket],
    ready: Callable[[], None],
    limits: ConnectionLimits | None = None,
) -> None:
    """Serve until a signal comes. `ready` is called once the default model answers; what loading it raises ends the
    server and is raised. `Lost` where only another process can go on."""
    sys.setswitchinterval(_SWITCH)
    server = Server(app, models, limits=limits)

    async def both() -> None:
        async def load() -> None:
            try:
                await models.open()
                ready()
            except BaseException:
                server.should_exit = True
                raise

        loading = asyncio.ensure_future(load())
        await server.serve(sockets=listeners)
        if not loading.done():
            loading.cancel()
            with suppress(asyncio.CancelledError):
                await loading
        else:
            loading.result()

    asyncio.run(both())
    if models.lost is not None and server.kept:  # not if it was told to stop before
        raise Lost(models.lost, server.kept)
