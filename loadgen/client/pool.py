"""Pooled connections to one server, so that a request need not wait for one to open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import sys
import time
from collections.abc import Coroutine, Sequence
from typing import Any
from urllib.parse import urlsplit

from loadgen.client.connection import Connection, Exchange
from loadgen.client.server import Server
from loadgen.client.transport import TransportLink
from loadgen.sockets import SocketLink, SocketPoller


class ConnectionPool:
    """Sends exchanges over idle connections, the last used first; `spares` are kept open ahead of need.

    Belongs to the event loop in which the first connection is opened.
    """

    def __init__(self, server: Server, spares: int = 0) -> None:
        self._server = server
        self._spares = spares
        self._poller: SocketPoller | None = None
        self._idle: list[Connection] = []
        self._opening: set[asyncio.Task[None]] = set()

    async def open_spares(self) -> None:
        """Open the spare connections. Raises OSError if the server cannot be reached."""
        missing = self._spares - len(self._idle)
        self._idle += await asyncio.gather(*(self._connect() for _ in range(missing)))

    def submit(self, exchange: Exchange) -> None:
        """Send now, or as soon as a new connection is open. `exchange.done` is called when it ends."""
        exchange.submitted_ns = time.monotonic_ns()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                connection.send(exchange)
                break
        else:
            self.open_for(exchange)
        if len(self._idle) + len(self._opening) < self._spares:
            self._start(self._open_spare())

    async def fetch(self, payload: Sequence[bytes], timeout_s: float) -> Exchange:
        """Send one request and wait for its end; a failure is in the exchange, not raised."""
        finished: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
        exchange = Exchange(payload, done=finished.set_result)
        self.submit(exchange)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(finished), timeout_s)
        self.cancel(exchange, "timeout", f"no complete answer in {timeout_s:g} s")
        return await finished

    def cancel(self, exchange: Exchange, failure: str, detail: str) -> None:
        """End an exchange that is still in flight; one that has ended is left alone."""
        if exchange.end_ns:
            return
        if exchange.connection is not None:
            exchange.connection.fail(failure, detail)
        else:
            exchange.fail(failure, detail)

    def open_for(self, exchange: Exchange) -> None:
        self._start(self._connect_and_send(exchange))

    def release(self, connection: Connection) -> None:
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    async def close(self) -> None:
        for task in self._opening:
            task.cancel()
        for connection in self._idle.copy():
            connection.close()
        await asyncio.sleep(0)  # lets the transports close before the loop does
        if self._poller is not None:
            self._poller.close()
            self._poller = None

    def _start(self, opening: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(opening)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self) -> Connection:
        connection = Connection(self)
        loop, server = asyncio.get_running_loop(), self._server
        if server.tls is None and sys.platform == "linux":
            self._poller = self._poller or SocketPoller(loop)
            connection.link = SocketLink(self._poller, await _connected(server.address), connection)
        else:
            name = urlsplit(f"//{server.host}").hostname if server.tls else None
            _, connection.link = await loop.create_connection(
                lambda: TransportLink(connection), *server.address, ssl=server.tls, server_hostname=name
            )
        return connection

    async def _open_spare(self) -> None:
        with contextlib.suppress(OSError):  # if the server is gone, the next request will tell
            self._idle.append(await self._connect())

    async def _connect_and_send(self, exchange: Exchange) -> None:
        begun_ns = time.monotonic_ns()
        try:
            connection = await self._connect()
        except OSError as error:
            if not exchange.end_ns:
                exchange.fail(_connect_failure(error), str(error))
            return
        exchange.connect_ns = time.monotonic_ns() - begun_ns
        if exchange.end_ns:  # it timed out in the meantime
            self._idle.append(connection)
        else:
            connection.send(exchange)


async def _connected(address: tuple[str, int]) -> socket.socket:
    """A non-blocking socket. Raises OSError.

    Not by the `sock_connect` of the event loop, since uvloop has a thread look up even what is an address.
    """
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with contextlib.ExitStack() as stack:
        connecting = stack.enter_context(socket.socket(family))
        connecting.setblocking(False)
        try:
            connecting.connect(address)
        except BlockingIOError:
            await _writable(connecting)
        if error := connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))
        stack.pop_all()
    return connecting


async def _writable(waiting: socket.socket) -> None:
    loop, writable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(waiting, writable.set)
    try:
        await writable.wait()
    finally:
        loop.remove_writer(waiting)


def _connect_failure(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connect_refused"
    return "tls" if isinstance(error, ssl.SSLError) else "connect"
