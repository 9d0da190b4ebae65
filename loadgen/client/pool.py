"""An HTTP/1.1 client for load: raw bytes, a time-stamp before anything else, pooled connections.

One request is one `Exchange`. Nothing is parsed while it is in flight but the framing that tells its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

from loadgen.client.http1 import HttpError, ResponseReader
from loadgen.sockets import descriptor_of, write_now


@dataclass(frozen=True, slots=True)
class Server:
    """Where requests go. `address` is an (ip, port), looked up once, so that no request waits on DNS."""

    host: str  # as in the URL, for the Host header and TLS
    address: tuple[str, int]
    tls: ssl.SSLContext | None
    path_prefix: str
    headers: str = ""  # extra header lines, each with its CRLF

    @classmethod
    def resolve(cls, base_url: str, api_key: str | None = None) -> Server:
        """Raises ValueError for a URL that is not http(s)://host..., OSError if the name is not found."""
        url = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"--base-url {base_url}: expected http://HOST:PORT or https://HOST:PORT")
        port = url.port or (443 if url.scheme == "https" else 80)
        found = socket.getaddrinfo(url.hostname, port, type=socket.SOCK_STREAM)
        # A name with IPv6 and IPv4 addresses: servers listen on IPv4 more often than not.
        address = min(found, key=lambda info: info[0] != socket.AF_INET)[4]
        return cls(
            host=url.netloc.rpartition("@")[2],
            address=(str(address[0]), port),
            tls=ssl.create_default_context() if url.scheme == "https" else None,
            path_prefix=url.path.rstrip("/").removesuffix("/v1"),
            headers=f"Authorization: Bearer {api_key}\r\n" if api_key else "",
        )

    def request(
        self, method: str, path: str, body: Sequence[bytes] = (), request_id: str = ""
    ) -> list[bytes]:
        """The bytes of a request, as pieces, so that large bodies can share theirs."""
        head = f"{method} {self.path_prefix}{path} HTTP/1.1\r\nHost: {self.host}\r\n{self.headers}"
        if request_id:
            head += f"X-Request-Id: {request_id}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {sum(map(len, body))}\r\n"
        return [f"{head}Accept-Encoding: identity\r\n\r\n".encode(), *body]


@dataclass(slots=True)
class Exchange:
    """One request and what came back. Times are `time.monotonic_ns()`; 0 means "has not happened"."""

    payload: Sequence[bytes]
    index: int = -1
    attempt: int = 0
    retried: bool = False  # another attempt takes its place
    has_token: bool = False  # somebody has looked, and there was one
    due_ns: int = 0
    dispatched_ns: int = 0  # the schedule released it
    submitted_ns: int = 0  # the pool got it; later than dispatched if a limit held it back
    connect_ns: int = 0  # a duration: what opening a connection for it took, 0 if one was at hand
    sent_ns: int = 0
    end_ns: int = 0
    response: ResponseReader = field(default_factory=ResponseReader)
    failure: str | None = None  # a kind, such as "timeout"
    detail: str = ""
    reconnected: bool = False  # the pooled connection turned out to be closed by the server
    connection: Connection | None = None
    done: Callable[[Exchange], None] | None = None

    def body(self) -> bytes:
        return b"".join(self.response.parts)


class Connection(asyncio.Protocol):
    """One connection; carries one exchange at a time."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._served = 0
        self._descriptor: int | None = None

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._descriptor = descriptor_of(transport)

    def send(self, exchange: Exchange) -> None:
        assert self._transport is not None
        self._exchange = exchange
        exchange.connection = self
        data = b"".join(exchange.payload)
        exchange.sent_ns = exchange.sent_ns or time.monotonic_ns()
        write_now(self._transport, self._descriptor, data)

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        exchange = self._exchange
        if exchange is None:
            self.close()  # bytes that no request asked for
            return
        try:
            complete = exchange.response.feed(data, now_ns)
        except HttpError as error:
            self.fail("malformed_http", str(error))
            return
        if complete:
            self._finish(now_ns)

    def eof_received(self) -> bool:
        return False  # close our side as well

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.forget(self)
        exchange = self._exchange
        if exchange is None:
            return
        if exchange.response.ends_at_close() and error is None:
            self._finish(time.monotonic_ns())
        elif self._served and not exchange.response.first_byte_ns and not exchange.reconnected:
            # The server closed an idle connection just as it was reused: no fault of the request.
            self._exchange = exchange.connection = None
            exchange.reconnected = True
            self._pool.open_for(exchange)
        else:
            self.fail("stream_cut", str(error or "the connection was closed before the response ended"))

    def fail(self, failure: str, detail: str) -> None:
        """End the exchange as failed and drop the connection, whose state is unknown from here on."""
        exchange, self._exchange = self._exchange, None
        self.close()
        if exchange is not None:
            exchange.failure, exchange.detail = failure, detail
            _end(exchange, time.monotonic_ns())

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, now_ns: int) -> None:
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        self._served += 1
        if exchange.response.keep_alive and self.usable and not exchange.response.ends_at_close():
            self._pool.release(self)
        else:
            self.close()
        _end(exchange, now_ns)


class ConnectionPool:
    """Sends exchanges over idle connections, the last used first; `spares` are kept open ahead of need."""

    def __init__(self, server: Server, spares: int = 0) -> None:
        self._server = server
        self._spares = spares
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
            exchange.failure, exchange.detail = failure, detail
            _end(exchange, time.monotonic_ns())

    def open_for(self, exchange: Exchange) -> None:
        self._start(self._connect_and_send(exchange))

    def _start(self, opening: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(opening)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def release(self, connection: Connection) -> None:
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    async def close(self) -> None:
        for task in self._opening:
            task.cancel()
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # lets the transports close before the loop does

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        tls: dict[str, Any] = {}
        if self._server.tls is not None:
            tls = {"ssl": self._server.tls, "server_hostname": urlsplit(f"//{self._server.host}").hostname}
        _, connection = await loop.create_connection(lambda: Connection(self), *self._server.address, **tls)
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
                exchange.failure, exchange.detail = _connect_failure(error), str(error)
                _end(exchange, time.monotonic_ns())
            return
        exchange.connect_ns = time.monotonic_ns() - begun_ns
        if exchange.end_ns:  # it timed out in the meantime
            self._idle.append(connection)
        else:
            connection.send(exchange)


def _end(exchange: Exchange, now_ns: int) -> None:
    exchange.end_ns = now_ns
    exchange.connection = None
    if exchange.done is not None:
        exchange.done(exchange)


def _connect_failure(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connect_refused"
    return "tls" if isinstance(error, ssl.SSLError) else "connect"
