"""How a serving process ends, seen from outside: a real process with a make-believe engine."""

from __future__ import annotations

import json
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

SCRIPT = Path(__file__).with_name("lifecycle_process.py")
PATIENCE_S = 20


class ServerProcess:
    def __init__(self, **config: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(config)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = urlsplit(self.process.stdout.readline().strip()).port

    def get(self, path: str) -> HTTPResponse:
        """A connection for each request, left open."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request("GET", path)
        return connection.getresponse()

    def open_stream(self) -> HTTPResponse:
        response = self.get("/stream")
        assert response.read(6) == b"begin "
        return response

    def signal_and_wait_for_drain(self, signum: int = signal.SIGTERM) -> None:
        self.process.send_signal(signum)
        deadline = time.monotonic() + PATIENCE_S
        while (response := self.get("/health")).status != 503:
            assert time.monotonic() < deadline
            response.read()
        assert json.loads(response.read()) == {"reason": "shutting_down"}

    def exit_code(self) -> int:
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def start() -> Iterator[Callable[..., ServerProcess]]:
    started: list[ServerProcess] = []

    def start_server(**config: object) -> ServerProcess:
        started.append(ServerProcess(**config))
        return started[-1]

    yield start_server
    for server in started:
        server.process.kill()
        server.process.communicate()


@pytest.mark.parametrize("event_loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_streams_finish_and_refuses_new_ones(
    start: Callable[..., ServerProcess], event_loop: str, signum: int
) -> None:
    server = start(event_loop=event_loop)
    idle_connection = server.get("/health")
    idle_connection.read()
    stream = server.open_stream()
    server.signal_and_wait_for_drain(signum)
    assert server.get("/stream").status == 503
    server.get("/finish").read()
    assert stream.read() == b"finished"
    assert server.exit_code() == 0
    with pytest.raises(ConnectionRefusedError):
        server.get("/health")


def test_streams_that_outlast_the_shutdown_timeout_are_aborted(start: Callable[..., ServerProcess]) -> None:
    server = start(shutdown_timeout=0.1)
    stream = server.open_stream()
    server.process.send_signal(signal.SIGTERM)
    assert stream.read() == b"aborted"
    assert server.exit_code() == 0


def test_a_second_signal_ends_at_once(start: Callable[..., ServerProcess]) -> None:
    server = start(shutdown_timeout=1000)
    server.open_stream()
    server.signal_and_wait_for_drain()
    server.process.send_signal(signal.SIGINT)
    assert server.exit_code() == 128 + signal.SIGINT


def test_the_death_of_the_engine_reaches_streams_and_the_exit_code(
    start: Callable[..., ServerProcess],
) -> None:
    server = start()
    stream = server.open_stream()
    server.get("/die").read()
    assert stream.read() == b"error"
    assert server.exit_code() == 1


def test_an_engine_that_does_not_stop_does_not_hold_the_process(start: Callable[..., ServerProcess]) -> None:
    server = start()
    server.get("/hang").read()
    server.process.send_signal(signal.SIGTERM)
    assert server.exit_code() == 1


def test_a_unix_socket(start: Callable[..., ServerProcess], tmp_path: Path) -> None:
    path = str(tmp_path / "octavo.sock")
    start(uds=path)
    with httpx.Client(transport=httpx.HTTPTransport(uds=path)) as http:
        assert http.get("http://localhost/health").json() == {"reason": "ok"}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_https(start: Callable[..., ServerProcess], tmp_path: Path) -> None:
    certificate, key = str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=test"
    )
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", certificate, "-keyout", key]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    server = start(ssl_certfile=certificate, ssl_keyfile=key)
    context = ssl.create_default_context(cafile=certificate)
    with httpx.Client(verify=context, base_url=f"https://127.0.0.1:{server.port}") as http:
        assert http.get("/health").json() == {"reason": "ok"}
        with http.stream("GET", "/stream") as stream:
            pieces = stream.iter_bytes()
            assert next(pieces) == b"begin "
            http.get("/finish")
            assert b"".join(pieces) == b"finished"
