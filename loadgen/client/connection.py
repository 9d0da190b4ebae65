"""One request over one connection. In flight nothing is parsed but the framing that tells its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loadgen.client.http1 import HttpError, ResponseReader


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

    def fail(self, failure: str, detail: str) -> None:
        self.failure, self.detail = failure, detail
        self.end(time.monotonic_ns())

    def end(self, time_ns: int) -> None:
        self.end_ns = time_ns
        self.connection = None
        if self.done is not None:
            self.done(self)


class Link(Protocol):
    """A connection to the server, through which bytes go; see `SocketLink`."""

    @property
    def closed(self) -> bool: ...

    def send(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class Owner(Protocol):
    """Who gave out a connection."""

    def release(self, connection: Connection) -> None:
        """It is free for another exchange."""

    def forget(self, connection: Connection) -> None:
        """It is closed."""

    def open_for(self, exchange: Exchange) -> None:
        """Send this over a new one."""


class Connection:
    """Carries one exchange at a time. `link` is set before the first."""

    link: Link

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._exchange: Exchange | None = None
        self._served = 0

    @property
    def usable(self) -> bool:
        return not self.link.closed

    def send(self, exchange: Exchange) -> None:
        self._exchange = exchange
        exchange.connection = self
        data = b"".join(exchange.payload)
        exchange.sent_ns = exchange.sent_ns or time.monotonic_ns()
        self.link.send(data)

    def received(self, data: bytes, time_ns: int) -> None:
        exchange = self._exchange
        if exchange is None:
            self.close()  # bytes that no request asked for
            return
        try:
            complete = exchange.response.feed(data, time_ns)
        except HttpError as error:
            self.fail("malformed_http", str(error))
            return
        if complete:
            self._finish(time_ns)

    def lost(self, error: Exception | None) -> None:
        self._owner.forget(self)
        exchange = self._exchange
        if exchange is None:
            return
        if exchange.response.ends_at_close() and error is None:
            self._finish(time.monotonic_ns())
        elif self._served and not exchange.response.first_byte_ns and not exchange.reconnected:
            # The server closed an idle connection just as it was reused: no fault of the request.
            self._exchange = exchange.connection = None
            exchange.reconnected = True
            self._owner.open_for(exchange)
        else:
            self.fail("stream_cut", str(error or "the connection was closed before the response ended"))

    def fail(self, failure: str, detail: str) -> None:
        """End the exchange as failed and drop the connection, whose state is unknown from here on."""
        exchange, self._exchange = self._exchange, None
        self.close()
        if exchange is not None:
            exchange.fail(failure, detail)

    def close(self) -> None:
        self.link.close()
        self._owner.forget(self)

    def _finish(self, time_ns: int) -> None:
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        self._served += 1
        if exchange.response.keep_alive and self.usable and not exchange.response.ends_at_close():
            self._owner.release(self)
        else:
            self.close()
        exchange.end(time_ns)
