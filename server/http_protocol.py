"""HTTP/1.1 as uvicorn speaks it, with a bound on headers, and errors in the API's shape."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.errors import APIError

MAX_HEAD_BYTES = 64 * 1024
"""Of a request line and its headers, beyond what comes with a single read; the parser itself has no limit."""


class HttpProtocol(HttpToolsProtocol):
    """One connection. One that asks nothing at all is closed like one that is idle between two requests."""

    _is_in_head = False  # a request has begun, its headers have not ended
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        was_in_head = self._is_in_head
        super().data_received(data)
        if was_in_head and self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, f"the headers are larger than {MAX_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        """Answer and close; in the middle of another answer an error would be taken for a part of it."""
        is_answering = (
            self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        )
        if not is_answering and not self.transport.is_closing():
            body = orjson.dumps(APIError(status, message).body())
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
