"""What never becomes a request: noise, endless headers, silence."""

from __future__ import annotations

import json
import socket
import time
from http.client import HTTPResponse
from typing import Any

import httpx
import pytest

from server.http.connection import MAX_HEAD_BYTES
from tests.support.live_server import live_server

BODY = b'{"prompt": "abc", "stream": true}'
HEADERS = b"Host: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\n" + HEADERS + b"\r\n%s"
STREAM = POST % (len(BODY), BODY)


def connect(url: str) -> socket.socket:
    address = httpx.URL(url)
    return socket.create_connection((address.host, address.port), timeout=20)


def read_all(connection: socket.socket) -> bytes:
    """Until the server closes; it may reset what it has not read."""
    received = b""
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


def error_of(answer: bytes) -> tuple[bytes, dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    error: dict[str, Any] = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return head.split(b" ")[1], error


@pytest.mark.parametrize(
    "noise",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["tls", "http2", "length", "both lengths"],
)
def test_what_is_no_http_gets_an_error_object(served: Any, noise: bytes) -> None:
    with connect(served.url) as connection:
        connection.sendall(noise)
        status, error = error_of(read_all(connection))
    assert (status, error["type"], error["code"]) == (b"400", "invalid_request_error", "invalid_http")


@pytest.mark.parametrize("parts", [1, 7], ids=["at once", "in parts"])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
def test_an_offer_of_another_protocol_is_declined_and_the_body_kept(
    served: Any, is_chunked: bool, parts: int
) -> None:
    """As Java's HTTP client makes it with the first request on each connection."""
    length, body = b"Content-Length: %d" % len(BODY), BODY
    if is_chunked:
        length, body = b"Transfer-Encoding: chunked", b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n" + offer + length
    data = head + b"\r\n\r\n" + body + b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n"
    size = -(-len(data) // parts)
    with connect(served.url) as connection:
        for start in range(0, len(data), size):
            connection.sendall(data[start : start + size])
            time.sleep(0.01 * (parts > 1))
        answers = read_all(connection)
    assert answers.count(b"HTTP/1.1 200") == 2 and b"[DONE]" in answers
    assert answers.endswith(b'"reason":"ok"}')
    with connect(served.url) as connection:
        connection.sendall(head.replace(b"Upgrade,", b"close, Upgrade,", 1) + b"\r\n\r\n" + body)
        assert b"[DONE]" in read_all(connection)


def test_headers_have_an_end(served: Any) -> None:
    with connect(served.url) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
        with pytest.raises(ConnectionError):
            connection.sendall(b"a" * (1000 * MAX_HEAD_BYTES))
    assert httpx.get(f"{served.url}/health", headers={"x": "a" * (MAX_HEAD_BYTES // 2)}).status_code == 200


def test_a_large_body_is_no_header(served: Any) -> None:
    body = b'{"prompt": "abc", "user": "%s"}' % (b"a" * (3 * MAX_HEAD_BYTES))
    with connect(served.url) as connection:
        connection.sendall(
            2 * (POST % (len(body), body)) + b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n"
        )
        assert read_all(connection).count(b"HTTP/1.1 200") == 3


def test_noise_behind_a_stream_is_not_answered_within_it(served: Any) -> None:
    served.engine.paused.set()
    with connect(served.url) as connection:
        connection.sendall(STREAM)
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200")
        connection.sendall(b"\x00noise\r\n\r\n")
        assert b"400" not in read_all(connection)


def test_a_connection_goes_on_after_every_refusal(served: Any) -> None:
    """The body of a refused request is read to its end, so that it is not taken for the next one."""
    chunked = (
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n%x;odd=1\r\n%s\r\n0\r\n\r\n"
    )
    requests = {
        404: POST.replace(b"/v1/completions", b"/v1/nope") % (len(BODY), BODY),
        405: POST.replace(b"POST", b"PUT") % (len(BODY), BODY),
        415: POST.replace(b"application/json", b"text/plain") % (len(BODY), BODY),
        400: POST % (len(BODY), BODY[1:] + b"}"),
        200: b"POST /v1/completions HTTP/1.1\r\n" + chunked % (len(BODY), BODY),
    }
    with connect(served.url) as connection:
        for status, request in requests.items():
            connection.sendall(request)
            with HTTPResponse(connection) as response:
                response.begin()
                assert response.status == status
                response.read()
        connection.sendall(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert read_all(connection).endswith(b'"reason":"ok"}')


def test_requests_that_come_together_are_answered_in_turn(served: Any) -> None:
    with connect(served.url) as connection:
        connection.sendall(3 * STREAM + b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
        answers = read_all(connection)
    assert answers.count(b"HTTP/1.1 200") == 4 and answers.count(b"[DONE]") == 3
    assert answers.endswith(b'"reason":"ok"}')


@pytest.mark.parametrize("data", [b"", b"GET /health HTTP/1.1\r\nX: "], ids=["silent", "headers without end"])
def test_a_connection_that_asks_nothing_is_closed(data: bytes) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await send({"type": (await receive())["type"] + ".complete"})

    with live_server(app, keep_alive_s=1) as url, connect(url) as connection:
        connection.sendall(data)
        assert read_all(connection) == b""


def test_a_body_that_does_not_come_is_given_up(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.http.body.PROGRESS_TIME_S", 0.1)
    with serve() as served, connect(served.url) as connection:
        connection.sendall(POST % (len(BODY), BODY[:2]))
        status, error = error_of(read_all(connection))
        assert (status, error["code"], error["type"]) == (b"408", "request_timeout", "invalid_request_error")
        assert not served.engine.submitted
