"""HTTP/1.1 as uvicorn speaks it, with a bound on headers, and errors in the API's shape."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from server.errors import APIError

MAX_HEAD_BYTES = 64 * 1024
"""Of a request line and its headers, beyond what comes with a single read; the parser itself has no limit."""

MAX_READ_AHEAD = 8
"""Requests of a connection that are read, though those before them are not answered yet."""


class HttpProtocol(HttpToolsProtocol):
    """One connection. One that asks nothing at all is closed like one that is idle between two requests.

    A request may offer to go on in another protocol, as Java's HTTP client does with HTTP/2. The parser stops
    there and would lose its body, so it reads such a request again without the offer.
    """

    _is_in_head = False  # a request has begun, its headers have not ended
    _head_bytes = 0
    _offers_upgrade = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unanswered: list[RequestResponseCycle] = []  # the first is being answered, others wait
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells all requests; uvicorn only the one that was read last."""
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_head = self._is_in_head
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(APIError(400, "this is no HTTP request", code="invalid_http"))
        if was_in_head and self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(APIError(431, f"the headers are larger than {MAX_HEAD_BYTES} bytes"))

    def _parse(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stopped:
                if not self._offers_upgrade:  # a CONNECT, which no route answers
                    return
                data = self._head_without_offer() + data[stopped.args[0] :]
                self._renew_parser()

    def _renew_parser(self) -> None:
        """One that has read `Connection: close` beside an offer would pass over all that follows."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's

    def _head_without_offer(self) -> bytes:
        lines = [b"%s %s HTTP/1.1" % (self.parser.get_method(), self.url)]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(token for token in tokens if token.lower() in (b"close", b"keep-alive"))
            if name != b"upgrade":
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._unset_keepalive_if_required()  # not before: headers that never end ask nothing either
        self._is_in_head = False
        self._offers_upgrade = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if not self._offers_upgrade:
            super().on_headers_complete()
            self._unanswered.append(self.cycle)
            if len(self._unanswered) <= MAX_READ_AHEAD:  # uvicorn stops, and would not see the client leave
                self.flow.resume_reading()

    def on_response_complete(self) -> None:
        del self._unanswered[0]
        super().on_response_complete()

    def on_message_complete(self) -> None:
        if not self._offers_upgrade:
            super().on_message_complete()

    def _refuse(self, error: APIError) -> None:
        """Answer and close; in the middle of another answer an error would be taken for a part of it."""
        is_within_answer = self._unanswered and self._unanswered[0].response_started
        if not is_within_answer and not self.transport.is_closing():
            body = orjson.dumps(error.body())
            head = (
                f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
                "content-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
