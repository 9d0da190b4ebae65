"""The client of `octavo chat` against the real routes, and against servers that behave badly."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from server.cli.chat.client import ChatClient, ChatError

SAY = {
    "messages": [{"role": "user", "content": "Gr\u00fc\u00dfe, \u4e16\u754c\u2028 \U0001f642"}],
    "max_tokens": 64,
}


def text_of(client: ChatClient, body: dict[str, Any]) -> str:
    return "".join(piece.text for piece in client.answer(body))


@contextmanager
def odd_server(*responses: bytes) -> Iterator[str]:
    """Answers each connection with the next of these bytes, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for response in responses:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(response)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):  # closing with bytes unread would reset the connection
                        pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_an_answer_and_its_figures(served: Any) -> None:
    client = ChatClient(served.url)
    assert client.first_model() == "test-model"
    stream = client.answer(SAY)
    assert stream.time_to_first_token_s is None and stream.tokens_per_second is None
    assert "".join(piece.text for piece in stream) == SAY["messages"][0]["content"]  # type: ignore[index]
    assert stream.is_counted and stream.num_tokens == len(SAY["messages"][0]["content"].encode()) + 1  # type: ignore[index]
    assert stream.finish_reason == "stop"
    assert stream.time_to_first_token_s and stream.tokens_per_second


@pytest.mark.parametrize(
    ("url", "base_url"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://h:1/", "http://h:1/v1"),
        ("https://h/v1/", "https://h/v1"),
        ("https://h/proxy/api/v3", "https://h/proxy/api/v3"),
    ],
)
def test_addresses(url: str, base_url: str) -> None:
    assert ChatClient(url).base_url == base_url


@pytest.mark.parametrize("url", ["ftp://h", "http://", ""])
def test_no_addresses(url: str) -> None:
    with pytest.raises(ChatError, match="no address"):
        ChatClient(url)


def test_refusals_say_what_to_do(serve: Any) -> None:
    with serve(api_key=("sesame",)) as served:
        with pytest.raises(ChatError, match=r"API key.*--api-key"):
            ChatClient(served.url).first_model()
        client = ChatClient(served.url, "sesame")
        with pytest.raises(ChatError, match="temperature"):
            text_of(client, {**SAY, "temperature": -1})
        with pytest.raises(ChatError, match="'other' does not exist"):
            text_of(client, {**SAY, "model": "other"})
        served.engine.max_queue = 0
        with pytest.raises(ChatError, match="too many requests wait; try again in 2 s"):
            text_of(client, SAY)


def test_a_server_that_is_away_or_breaks_off(serve: Any) -> None:
    with serve() as served:
        client = ChatClient(served.url)
        served.engine.paused.set()
        threading.Timer(0.2, served.engine.fail_requests).start()
        with pytest.raises(ChatError, match="internal error"):
            text_of(client, SAY)
    with pytest.raises(ChatError, match=r"no server answers at http://127.*Connection refused"):
        text_of(client, SAY)


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HI = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (b"", "no server answers"),
        (b"SSH-2.0-OpenSSH\r\n", "no server answers"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n<html>", "answered 502 Bad Gateway"),
        (b'HTTP/1.1 404 Not Found\r\n\r\n{"detail":"Not Found"}', "^Not Found$"),
        (b'HTTP/1.1 400 Bad Request\r\n\r\n{"error":"no such model"}', "^no such model$"),
        (STREAM + HI, "cut off"),
        (CHUNKED + b"%x\r\n%s\r\n" % (len(HI), HI), "broke|cut off"),
        (CHUNKED + b"%x\r\n%s" % (len(HI) + 9, HI), "broke|cut off"),
        (STREAM + b"data: <p>\n\n", "not JSON"),
        (STREAM + b'data: {"error":{"message":"out of memory"}}\n\n', "^out of memory$"),
        (STREAM + b"\n", "cut off"),
    ],
)
def test_what_odd_servers_do_becomes_one_line(response: bytes, message: str) -> None:
    with odd_server(response) as url, pytest.raises(ChatError, match=message) as caught:
        text_of(ChatClient(url), SAY)
    assert "\n" not in str(caught.value)


def test_other_servers_streams(served: Any) -> None:
    """Comments, CRLF, no space behind the colon, null fields, reasoning, no [DONE], no usage."""
    body = (
        b": ping\r\n\r\n"
        b'data:{"choices":[{"delta":{"role":"assistant","content":null}}],"usage":null}\r\n\r\n'
        b'data:{"choices":[{"delta":{"reasoning_content":"hm"}}]}\r\n\r\n'
        b'data:{"choices":[{"delta":{"content":"a\xe2\x80\xa8b"}}]}\r\n\r\n'
        b'data:{"choices":[{"delta":{},"finish_reason":"length"}]}\r\n\r\n'
    )
    with odd_server(STREAM + body) as url:
        stream = ChatClient(url).answer(SAY)
        assert [(piece.text, piece.reasoning) for piece in stream] == [("", "hm"), ("a\u2028b", "")]
    assert (stream.num_tokens, stream.is_counted, stream.finish_reason) == (2, False, "length")


def test_a_model_list_that_is_none() -> None:
    for body in (b"{}", b'{"data":[]}', b"[]", b"<html>"):
        with odd_server(STREAM + body) as url, pytest.raises(ChatError, match="lists no model"):
            ChatClient(url).first_model()
