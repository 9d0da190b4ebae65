"""A server under test, in a process of its own: started, waited for, and ended whatever happens."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGABRT, SIGKILL
from typing import IO

import psutil

START_TIMEOUT_S = 180.0
END_TIMEOUT_S = 30.0  # from SIGTERM, with no request in flight
POLL_S = 0.005
LOG_TAIL = 4000


@dataclass(slots=True)
class RunningServer:
    """A server that answers, for as long as the block of `running` lasts."""

    base_url: str
    model: str  # its name in the API
    pid: int
    ready_s: float  # from the start of the process to the first good answer
    end_s: float | None = None  # from SIGTERM to its end, once it has ended by that

    def peak_rss_bytes(self) -> int:
        """The most memory that was ever resident (VmHWM)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("no VmHWM in /proc: this benchmark needs Linux")


@contextmanager
def octavo(*flags: str, port: int | None = None, log: Path | None = None) -> Iterator[RunningServer]:
    """`octavo serve` with these flags, on a free port unless one is given. As `running` otherwise."""
    port = port or free_port()
    command = [sys.executable, "-m", "server.cli.main", "serve", "--port", str(port), *flags]
    with running(command, port, log=log) as server:
        yield server


@contextmanager
def running(
    command: list[str],
    port: int,
    ready_path: str = "/health",
    *,
    start_timeout_s: float = START_TIMEOUT_S,
    log: Path | None = None,
) -> Iterator[RunningServer]:
    """Runs `command` until the end of the block, which begins when `ready_path` answers with 200.

    Raises RuntimeError if the port is taken or the server does not come up. With any error the end of its
    output is shown; `log` keeps all of it.
    """
    base_url = f"http://127.0.0.1:{port}"
    if _listens(port):
        raise RuntimeError(f"something listens on port {port} already: it would be measured instead")
    with log.open("w+b") if log else tempfile.TemporaryFile() as output:
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        server = None
        try:
            _await_answer(base_url + ready_path, process, begin + start_timeout_s)
            ready_s = time.monotonic() - begin
            server = RunningServer(base_url, _model_name(base_url), process.pid, ready_s)
            yield server
        except Exception:
            _show_tail(output)
            raise
        finally:
            end_s = _end(process)
            if server is not None:
                server.end_s = end_s


def free_port() -> int:
    """One that nobody listens on at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _await_answer(url: str, process: subprocess.Popen[bytes], deadline: float) -> None:
    while not _answers(url):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"no good answer from {url} in time")
        time.sleep(POLL_S)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _model_name(base_url: str) -> str:
    with urllib.request.urlopen(f"{base_url}/v1/models", timeout=5) as answer:
        return str(json.load(answer)["data"][0]["id"])


def _show_tail(output: IO[bytes]) -> None:
    output.seek(max(0, os.fstat(output.fileno()).st_size - LOG_TAIL))
    print(output.read().decode(errors="replace"), file=sys.stderr, flush=True)


def _end(process: subprocess.Popen[bytes]) -> float | None:
    """Seconds that SIGTERM took. A process that is stuck is aborted, and so are its children."""
    begin = time.monotonic()
    process.terminate()
    for signum in (SIGABRT, SIGKILL):
        try:
            process.wait(END_TIMEOUT_S)
            return time.monotonic() - begin if signum is SIGABRT else None
        except subprocess.TimeoutExpired:
            print(f"the server is stuck: {signum.name}", file=sys.stderr, flush=True)
            for member in [*psutil.Process(process.pid).children(recursive=True), process]:
                with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                    member.send_signal(signum)
    process.wait()
    return None
