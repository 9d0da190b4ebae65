"""Bytes written past the event loop's queue arrive whole and in order, however little the socket takes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from loadgen.sockets import descriptor_of, write_now

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.mark.parametrize("new_loop", LOOPS)
def test_what_the_socket_does_not_take_follows(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    pieces = [b"small", bytes(range(256)) * 20_000, b"behind it", b"at the end"]  # 5 MB fill any socket

    async def send() -> bytes:
        ours, theirs = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        for piece in pieces:
            write_now(transport, descriptor_of(transport), piece)
        assert transport.get_write_buffer_size() > 0
        transport.write_eof()
        with theirs:
            return await asyncio.to_thread(lambda: b"".join(iter(lambda: theirs.recv(1 << 20), b"")))

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(send()) == b"".join(pieces)


def test_nothing_goes_past_tls() -> None:
    class Encrypted(asyncio.Transport):
        written = b""

        def write(self, data: bytes | bytearray | memoryview) -> None:
            self.written += bytes(data)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport = Encrypted({"socket": ours, "sslcontext": object()})
        assert descriptor_of(transport) is None
        write_now(transport, descriptor_of(transport), b"secret")
        assert transport.written == b"secret"
