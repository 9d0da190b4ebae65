"""The mock server in a process of its own, so that client and server do not share an interpreter."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

import orjson

from loadgen.mock import MockServer, Script, Truth

STOP = b"stop"
REQUEST_ID = "x-request-id"


@dataclass(frozen=True, slots=True)
class MockProcess:
    """A running mock. What it saw may be asked once, which stops the server."""

    base_url: str
    pipe: Connection

    def seen(self) -> list[Truth]:
        """All requests, in the order of their arrival."""
        self.pipe.send_bytes(STOP)
        rows = orjson.loads(self.pipe.recv_bytes())
        return [
            Truth({}, {REQUEST_ID: row["id"]}, row["received_ns"], 0, row["token_times_ns"]) for row in rows
        ]

    def truths(self) -> dict[str, Truth]:
        """What the server saw, by request id."""
        return {truth.headers[REQUEST_ID]: truth for truth in self.seen()}


@contextlib.contextmanager
def mock_process(script: Script) -> Iterator[MockProcess]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(script, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield MockProcess(ours.recv_bytes().decode(), ours)
    finally:
        process.terminate()
        process.join()


def _serve(script: Script, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with MockServer(script) as server:
        pipe.send_bytes(server.base_url.encode())
        pipe.recv_bytes()
    rows = [
        {
            "id": truth.headers.get(REQUEST_ID, ""),
            "received_ns": truth.received_ns,
            "token_times_ns": truth.token_times_ns,
        }
        for truth in server.truths
    ]
    pipe.send_bytes(orjson.dumps(rows))
