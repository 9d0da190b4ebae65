"""An OpenAI-like streaming server that knows the truth, to test load generators with.

It answers /v1/models, /v1/completions and /v1/chat/completions from a script of times and misbehaviours, on
raw sockets, and records what it received and when. `python -m loadgen.mock` serves until interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from loadgen.mock.reply import Reply
from loadgen.mock.script import Script, Truth
from loadgen.mock.ticker import Ticker
from loadgen.sockets import SocketLink, SocketPoller


@dataclass(slots=True)
class MockServer:
    """`with MockServer(script) as server:` serves in a thread, on a free port of the loopback."""

    script: Script = field(default_factory=Script)
    port: int = 0
    truths: list[Truth] = field(default_factory=list)
    in_flight: int = 0
    max_in_flight: int = 0
    connections: int = 0
    queue: deque[Callable[[], None]] = field(default_factory=deque)
    ticker: Ticker = field(init=False)
    _poller: SocketPoller = field(init=False)
    _listener: socket.socket = field(init=False)
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> MockServer:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None and self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _serve(self, ready: threading.Event) -> None:
        self._loop = _new_event_loop()
        self._loop.run_until_complete(self.listen())
        self._loop.call_soon(ready.set)
        self._loop.run_forever()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._poller.close()

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self.ticker = Ticker(loop)
        self._poller = SocketPoller(loop)
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=4096)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                accepted, _ = self._listener.accept()
                self.connections += 1
                asyncio.get_running_loop().call_later(self.script.slow_read_s, self._open, accepted)

    def _open(self, accepted: socket.socket) -> None:
        connection = _Connection(self)
        connection.link = SocketLink(self._poller, accepted, connection)

    def metrics(self) -> bytes:
        """A few figures under the names that vLLM gives them."""
        tokens = sum(len(truth.token_times_ns) for truth in self.truths)
        return (
            f'vllm:num_requests_running{{model_name="mock"}} {self.in_flight}\n'
            f'vllm:num_requests_waiting{{model_name="mock"}} {len(self.queue)}\n'
            f'vllm:generation_tokens_total{{model_name="mock"}} {tokens}\n'
        ).encode()

    def begin(self, start: Callable[[], None]) -> None:
        """Run `start` once there is capacity."""
        if self.script.capacity is not None and self.in_flight >= self.script.capacity:
            self.queue.append(start)
            return
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        start()

    def end(self) -> None:
        self.in_flight -= 1
        if self.queue:
            self.begin(self.queue.popleft())


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, so that the mock keeps up with the client."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class _Connection:
    link: SocketLink

    def __init__(self, server: MockServer) -> None:
        self._server = server
        self._data = b""
        self._used = False
        self._reply: Reply | None = None

    def received(self, data: bytes, time_ns: int) -> None:
        self._data += data
        head, blank, rest = self._data.partition(b"\r\n\r\n")
        if not blank:
            return
        request_line, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        self._data = rest[length:]
        self._answer(request_line.split(" ")[1], headers, rest[:length], time_ns)

    def _answer(self, path: str, headers: dict[str, str], body: bytes, received_ns: int) -> None:
        server, script = self._server, self._server.script
        if script.close_on_reuse and self._used:
            self.link.close()
            return
        self._used = True
        if path == "/v1/models":
            card = {"id": "mock", "object": "model", "max_model_len": script.max_model_len}
            self._send(200, orjson.dumps({"object": "list", "data": [card]}))
            return
        if path == "/metrics":
            self._send(200 if script.metrics else 404, server.metrics())
            return
        if not path.endswith("completions"):
            self._send(200 if path == "/health" else 404, b"{}")
            return
        truth = Truth(orjson.loads(body), headers, received_ns)
        server.truths.append(truth)
        behaviour = script.behaviour if len(server.truths) % script.misbehave_every == 0 else "ok"
        if behaviour in ("429", "500"):
            wait = script.retry_after_s
            extra = "" if wait is None else f"Retry-After: {wait}\r\n"
            error = {"message": "as scripted", "type": "server_error"}
            self._send(int(behaviour), orjson.dumps({"error": error}), extra)
        elif behaviour == "not_http":
            self.link.send(b"hello\r\n\r\n")
        else:
            self._reply = Reply(
                script,
                self.link,
                truth,
                server.ticker,
                chat="chat" in path,
                behaviour=behaviour,
                on_end=server.end,
            )
            server.begin(self._reply.start)

    def lost(self, error: Exception | None) -> None:
        if self._reply is not None:
            self._reply.end()

    def _send(self, status: int, body: bytes, extra: str = "") -> None:
        head = f"HTTP/1.1 {status} Scripted\r\n{extra}Content-Length: {len(body)}\r\n\r\n"
        self.link.send(head.encode() + body)
