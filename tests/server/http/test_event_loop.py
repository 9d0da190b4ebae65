"""Portions of events: everything that is ready is given, a little at a time, and nothing that has gone."""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from server.http.event_loop import EVENTS_A_TURN, FewEventsSelector, new_event_loop

NUM_SOCKETS = 5 * EVENTS_A_TURN // 2


@pytest.fixture
def readable() -> Iterator[list[socket.socket]]:
    """Sockets that have something to read."""
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(NUM_SOCKETS)]
        for reader, writer in pairs:
            stack.enter_context(reader)
            stack.enter_context(writer)
            writer.send(b"x")
        yield [reader for reader, _ in pairs]


@pytest.fixture
def selector(readable: list[socket.socket]) -> Iterator[FewEventsSelector]:
    with FewEventsSelector() as made:
        for sock in readable:
            made.register(sock.fileno(), selectors.EVENT_READ, sock)
        yield made


def given(selector: FewEventsSelector) -> list[Any]:
    """The data of the next events."""
    return [key.data for key, _ in selector.select(0)]


def test_all_that_is_ready_is_given_in_portions(
    selector: FewEventsSelector, readable: list[socket.socket]
) -> None:
    portions = [given(selector) for _ in range(3)]
    assert [len(portion) for portion in portions] == [EVENTS_A_TURN, EVENTS_A_TURN, EVENTS_A_TURN // 2]
    assert {sock.fileno() for portion in portions for sock in portion} == {s.fileno() for s in readable}


def test_sockets_that_are_always_ready_do_not_starve_the_others(selector: FewEventsSelector) -> None:
    counts: dict[socket.socket, int] = {}
    for _ in range(6):  # nobody reads
        for sock in given(selector):
            counts[sock] = counts.get(sock, 0) + 1
    assert set(counts.values()) == {2} and len(counts) == NUM_SOCKETS


def test_what_was_closed_meanwhile_is_not_given(
    selector: FewEventsSelector, readable: list[socket.socket]
) -> None:
    first = given(selector)
    waiting = [sock for sock in readable if sock not in first]
    for sock in waiting:
        selector.unregister(sock.fileno())
    selector.register(waiting[0].fileno(), selectors.EVENT_WRITE, "something else")
    assert {*given(selector), *given(selector)} == {*first, "something else"}


def test_without_anything_ready_it_waits_as_long_as_it_is_told() -> None:
    with FewEventsSelector() as selector:
        assert selector.select(0.001) == []


def test_an_echo_server_serves_a_burst() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(4))
        await writer.drain()
        writer.close()

    async def ask(port: int, word: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(word)
        answer = await reader.read()
        writer.close()
        return answer

    async def main() -> None:
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            words = [b"%04d" % i for i in range(100)]
            assert await asyncio.gather(*(ask(port, word) for word in words)) == words

    with asyncio.Runner(loop_factory=lambda: new_event_loop("asyncio")) as runner:
        runner.run(main())
