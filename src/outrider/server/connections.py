"""What a connection may cost: how many there are, how long one may wait, how slowly one may read.

All of it is held here, below HTTP's requests: a connection that breaks a limit is closed, and whatever was being done
for it learns so as from any client that leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from outrider.errors import InvalidRequest
from outrider.server.addresses import household
from outrider.server.errors import ApiError
from outrider.server.safety import hardened
from outrider.server.seldom import Seldom

Network = IPv4Network | IPv6Network

CUT = "outrider.cut"
"""Where a request's `scope["state"]` says why its connection was cut off."""
_PIPELINED = 64 << 10
"""Bytes that may arrive ahead of the answer to the request before them."""
_PIECE = 4 << 10
"""Bytes read before other connections have their turn: in chunks of one byte each, h11 takes 15 ms over them."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Seconds, bytes, and numbers of connections."""

    connections: int = 512
    per_address: int = 256
    """Of IPv6, per network of 64 bits: whoever has one of its addresses has all of them."""
    head: float = 10.0
    """From connecting, or from a later request's first byte, until its head is there."""
    idle: int = 15
    """Between an answer and the next request's first byte. More than clients keep a connection for (httpx: 5 s)."""
    window: float = 60.0
    """In each of these, a reader that lets bytes wait takes `least` of them, or all."""
    least: int = 16 << 10
    proxies: tuple[Network, ...] = ()
    """Believed whom they pass requests on for, and with any number of connections."""

    def of_proxy(self, address: str) -> bool:
        return bool(self.proxies and address) and any(ip_address(address) in network for network in self.proxies)


class Connection(H11Protocol):
    """One client. Every wait for it has an end: for a request's head (also byte by byte), for the next request, for
    its reading. While a request is answered reading goes on, so that a client that leaves is noticed at once.

    Invariant: as long as no request is under way, a timer runs that closes the connection.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
        refused: Seldom,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._refused = refused
        self._head = _Timer(self.loop, limits.head, self._hang_up)
        self._reader = _Timer(self.loop, limits.window, self._judge_reader)
        self._unsent = 0
        """When the reader's window began."""
        self._household = ""

    @property
    def answering(self) -> bool:
        """Whether a request is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:  # the event loop's own kind, whose `max_size` has no type
        super().connection_made(transport)
        transport.max_size = _PIECE
        address = "" if self.client is None else self.client[0]
        self._household = household(address)
        alike = sum(isinstance(each, Connection) and each._household == self._household for each in self.connections)
        many = alike > self._limits.per_address and not self._limits.of_proxy(address)
        if len(self.connections) > self._limits.connections or many:
            self._refused.log("too many connections", connections=len(self.connections), from_one_address=alike)
            self._refuse(ApiError(503, "too many connections", code="too_many_connections", retry_after=1))
        else:
            self._head.start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head.stop()
        self._reader.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.answering:
            self._head.stop()
            self._read_ahead()
        elif not self.transport.is_closing():
            self._head.start()  # these are a head's first bytes, or left of a body that has had its answer

    def _read_ahead(self) -> None:
        """uvicorn stops reading at the next request's first byte, and would not see its sender leave."""
        if self.flow.read_paused and self.conn.their_state is h11.DONE:
            if len(self.conn.trailing_data[0]) > _PIPELINED:
                self.transport.abort()
            else:
                self.flow.resume_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._reader.stop()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_reader()

    def timeout_keep_alive_handler(self) -> None:
        self._hang_up()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, "this is not HTTP that can be read"))

    def _refuse(self, error: ApiError) -> None:
        """Answer without asking the application, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = error.response()
            headers = hardened([*answer.raw_headers, (b"connection", b"close")])
            head = h11.Response(status_code=error.status, headers=headers)
            events = (head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage())
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        if self.answering:  # nobody is left to answer, as the application learns when a client leaves
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._hang_up()

    def _hang_up(self) -> None:
        self.transport.close()  # what is written already is still sent
        self._watch_reader()

    def _watch_reader(self) -> None:
        """Begin a window. Nothing is written in it, for the buffer is full or the connection closing: it can only
        shrink, and by how much is what the reader took."""
        unsent = self.transport.get_write_buffer_size()
        if unsent and not self._reader.running:
            self._unsent = unsent
            self._reader.start()

    def _judge_reader(self) -> None:
        taken = self._unsent - self.transport.get_write_buffer_size()
        if taken >= min(self._limits.least, self._unsent):
            self._watch_reader()
            return
        if self.answering:
            self.scope["state"][CUT] = "reader stalled"
        self.transport.abort()


class _Timer:
    """Does `act` once, `seconds` after it was started; starting it again meanwhile changes nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, act: Callable[[], None]) -> None:
        self._loop, self._seconds, self._act = loop, seconds, act
        self._handle: asyncio.TimerHandle | None = None

    @property
    def running(self) -> bool:
        return self._handle is not None

    def start(self) -> None:
        if self._handle is None:
            self._handle = self._loop.call_later(self._seconds, self._ring)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        self._handle = None
        self._act()


def networks(given: Iterable[str]) -> tuple[Network, ...]:
    """Addresses and networks, as people write them."""
    try:
        return tuple(ip_network(each, strict=False) for each in given)
    except ValueError as error:
        raise InvalidRequest(f"trusted-proxies: {error}; give addresses or networks, as in 10.0.0.0/8") from None


def connections(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """What uvicorn is to make for each client."""
    return cast(type[asyncio.Protocol], partial(Connection, limits=limits, refused=Seldom()))
