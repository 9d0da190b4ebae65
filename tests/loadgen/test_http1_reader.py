"""HTTP framing: however the bytes are cut, the same body, and times that are those of the reads."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.http1 import HttpError, ResponseReader
from tests.support.examples import examples

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def chunked(*chunks: bytes, extension: bytes = b"", trailer: bytes = b"") -> bytes:
    framed = b"".join(b"%x%s\r\n%s\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n" + trailer + b"\r\n"


def feed(data: bytes, cuts: list[int]) -> ResponseReader:
    """Feed `data` cut at the given places; read k happens at time k + 1."""
    reader = ResponseReader()
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    done = [reader.feed(data[a:b], number + 1) for number, (a, b) in enumerate(pairwise(places))]
    assert done == [False] * (len(done) - 1) + [True]
    return reader


@examples(150)
@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    cuts=st.lists(st.integers(0, 10_000), max_size=12),
    extension=st.sampled_from([b"", b";name=value"]),
    trailer=st.sampled_from([b"", b"X-Sum: 1\r\n", b"A: b\r\nC: d\r\n"]),
)
def test_chunked_bodies_survive_any_cut(
    chunks: list[bytes], cuts: list[int], extension: bytes, trailer: bytes
) -> None:
    reader = feed(chunked(*chunks, extension=extension, trailer=trailer), cuts)
    assert b"".join(reader.parts) == b"".join(chunks)
    assert len(reader.parts) == len(reader.part_times_ns)
    assert reader.part_times_ns == sorted(reader.part_times_ns)
    assert reader.keep_alive and reader.status == 200


@examples(60)
@given(body=st.binary(max_size=60), cuts=st.lists(st.integers(0, 10_000), max_size=8))
def test_bodies_with_a_length_survive_any_cut(body: bytes, cuts: list[int]) -> None:
    data = b"HTTP/1.1 429 Slow Down\r\nRetry-After: 3\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    reader = feed(data, cuts)
    assert b"".join(reader.parts) == body
    assert (reader.status, reader.headers["retry-after"]) == (429, "3")


def test_each_part_has_the_time_of_its_read() -> None:
    data = chunked(b"first", b"second")
    place = data.index(b"second")
    reader = ResponseReader()
    assert not reader.feed(data[:20], 10)
    assert not reader.feed(data[20:place], 20)
    assert reader.feed(data[place:], 30)
    assert (reader.first_byte_ns, reader.headers_ns) == (10, 20)
    assert list(zip(reader.parts, reader.part_times_ns, strict=True)) == [(b"first", 20), (b"second", 30)]


def test_a_body_until_close_ends_with_the_connection() -> None:
    reader = ResponseReader()
    assert not reader.feed(HEAD + b"Connection: close\r\n\r\nsome", 1)
    assert not reader.feed(b" text", 2)
    assert reader.ends_at_close() and b"".join(reader.parts) == b"some text"


def test_interim_responses_are_skipped() -> None:
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.1 100 Continue\r\n\r\n" + chunked(b"x"), 1)
    assert (reader.status, reader.parts) == (200, [b"x"])


@pytest.mark.parametrize(
    ("head", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nunasked", False),
    ],
)
def test_keep_alive(head: bytes, keep_alive: bool) -> None:
    reader = ResponseReader()
    assert reader.feed(head, 1)
    assert reader.keep_alive is keep_alive


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_not_http_is_refused(data: bytes) -> None:
    with pytest.raises(HttpError):
        ResponseReader().feed(data, 1)
