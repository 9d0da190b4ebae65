"""Sockets that are read past the event loop: every byte once, in order, with the time at which it arrived."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from loadgen.client import ConnectionPool, Server
from loadgen.sockets import SocketLink, SocketPoller

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
NewLoop = Callable[[], asyncio.AbstractEventLoop]
PATIENCE_S = 30.0


class Heard:
    """A receiver that keeps all. `on_data` is called as well."""

    def __init__(self, on_data: Callable[[], None] = lambda: None) -> None:
        self.reads: list[tuple[bytes, int]] = []
        self.end: list[Exception | None] = []
        self._on_data = on_data

    def received(self, data: bytes, time_ns: int) -> None:
        self.reads.append((data, time_ns))
        self._on_data()

    def lost(self, error: Exception | None) -> None:
        self.end.append(error)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        return ours, server.accept()[0]


def run(main: Callable[[SocketPoller], Coroutine[Any, Any, None]], new_loop: NewLoop = LOOPS[1]) -> None:
    async def with_poller() -> None:
        poller = SocketPoller(asyncio.get_running_loop())
        await asyncio.wait_for(main(poller), PATIENCE_S)
        poller.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(with_poller())


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_what_the_socket_does_not_take_follows(new_loop: NewLoop) -> None:
    pieces = [b"small", bytes(range(256)) * 40_000, b"behind it", b"at the end"]  # 10 MB fill any socket
    whole = b"".join(pieces)

    async def send(poller: SocketPoller) -> None:
        ours, theirs = tcp_pair()
        heard = Heard()
        link = SocketLink(poller, ours, heard)
        for piece in pieces:
            link.send(piece)
        assert link.has_unsent
        SocketLink(poller, theirs, heard)
        await until(lambda: sum(len(data) for data, _ in heard.reads) >= len(whole))
        assert b"".join(data for data, _ in heard.reads) == whole and not link.has_unsent

    run(send, new_loop)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says when the bytes of a stream arrived")
def test_the_time_of_a_read_is_when_the_bytes_arrived() -> None:
    async def receive(poller: SocketPoller) -> None:
        ours, theirs = tcp_pair()
        heard = Heard()
        SocketLink(poller, ours, heard)
        await asyncio.sleep(0.1)  # the kernel begins to note times a moment after it was first asked to
        before_ns = time.monotonic_ns()
        theirs.send(b"token")
        time.sleep(0.1)  # nobody reads
        late_ns = time.monotonic_ns()
        await until(lambda: heard.reads)
        [(data, time_ns)] = heard.reads
        assert data == b"token" and before_ns - 1_000_000 < time_ns < late_ns - 50_000_000
        theirs.close()

    run(receive)


def test_many_sockets_at_once_and_times_that_never_fall() -> None:
    async def receive(poller: SocketPoller) -> None:
        pairs = [tcp_pair() for _ in range(30)]
        ears = [Heard() for _ in pairs]
        for (ours, _), heard in zip(pairs, ears, strict=True):
            SocketLink(poller, ours, heard)
        for number in range(10):
            for _, theirs in pairs:
                theirs.send(b"%d" % number)
            await asyncio.sleep(0)
        await until(lambda: all(sum(len(data) for data, _ in heard.reads) == 10 for heard in ears))
        for (_, theirs), heard in zip(pairs, ears, strict=True):
            assert b"".join(data for data, _ in heard.reads) == b"0123456789"
            times_ns = [time_ns for _, time_ns in heard.reads]
            assert times_ns == sorted(times_ns)
            theirs.close()

    run(receive)


def test_a_link_that_another_one_closes_hears_nothing_more() -> None:
    async def receive(poller: SocketPoller) -> None:
        (ours, theirs), (others, their_other) = tcp_pair(), tcp_pair()
        links: list[SocketLink] = []
        ears = [Heard(lambda: links[1].close()), Heard(lambda: links[0].close())]
        links += [SocketLink(poller, ours, ears[0]), SocketLink(poller, others, ears[1])]
        theirs.send(b"a")
        their_other.send(b"b")
        await until(lambda: ears[0].reads or ears[1].reads)
        await asyncio.sleep(0.01)
        assert sorted(len(heard.reads) for heard in ears) == [0, 1]
        assert sorted(link.closed for link in links) == [False, True]
        assert not ears[0].end and not ears[1].end
        theirs.close()
        their_other.close()

    run(receive)


def test_a_receiver_that_fails_does_not_end_the_others() -> None:
    def fail() -> None:
        raise RuntimeError("as meant")

    async def receive(poller: SocketPoller) -> None:
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        pairs = [tcp_pair() for _ in range(3)]
        ears = [Heard(fail), Heard(), Heard()]
        for (ours, theirs), heard in zip(pairs, ears, strict=True):
            SocketLink(poller, ours, heard)
            theirs.send(b"a")
        await until(lambda: all(heard.reads for heard in ears))
        assert len(failures) == 1
        for _, theirs in pairs:
            theirs.close()

    run(receive)


@pytest.mark.parametrize("reset", [False, True])
def test_the_end_of_a_connection_is_told_once(reset: bool) -> None:
    async def receive(poller: SocketPoller) -> None:
        ours, theirs = tcp_pair()
        heard = Heard()
        link = SocketLink(poller, ours, heard)
        theirs.send(b"last words")
        if reset:
            await until(lambda: heard.reads)
            link.send(b"nobody reads this")  # so that closing resets the connection
            await asyncio.sleep(0.01)
        theirs.close()
        await until(lambda: heard.end)
        await asyncio.sleep(0.01)
        assert [data for data, _ in heard.reads] == [b"last words"] and link.closed
        assert [isinstance(error, OSError) for error in heard.end] == [reset]
        link.close()

    run(receive)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_encrypted_connections_are_kept_and_used_again(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=test"
    command = f"{make} -addext subjectAltName=DNS:localhost -keyout {key} -out {certificate}"
    subprocess.run(shlex.split(command), check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve_twice_over_one_connection() -> None:
        with listener, context.wrap_socket(listener.accept()[0], server_side=True) as connection:
            for answer in (b"one", b"two"):
                assert connection.recv(10_000).startswith(b"GET /x HTTP/1.1\r\n")
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n" + answer)

    thread = threading.Thread(target=serve_twice_over_one_connection)
    thread.start()
    trusted = ssl.create_default_context(cafile=certificate)
    port = listener.getsockname()[1]
    server = Server(f"localhost:{port}", ("127.0.0.1", port), trusted, "")

    async def fetch_twice() -> list[bytes]:
        pool = ConnectionPool(server)
        answers = [await pool.fetch(server.request("GET", "/x"), PATIENCE_S) for _ in range(2)]
        await pool.close()
        return [answer.body() for answer in answers]

    assert asyncio.run(fetch_twice()) == [b"one", b"two"]
    thread.join()
