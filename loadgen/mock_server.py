"""An OpenAI-like streaming server that knows the truth, to test load generators with.

It answers /v1/models, /v1/completions and /v1/chat/completions from a script of times and misbehaviours, on
raw sockets, and records what it received and when. `python -m loadgen.mock_server` serves until interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, cast

import orjson

BEHAVIOURS = ("ok", "429", "500", "cut", "error", "malformed", "stall", "not_http", "no_done")


@dataclass(frozen=True, slots=True)
class Script:
    """What the server does with every completion. Times are seconds from the receipt of the request."""

    ttft_s: float = 0.05
    itl_s: float = 0.01
    tokens_per_chunk: int = 1
    token_text: str = " token"
    head_event_s: float | None = None  # an event without tokens (role only, or empty text) at this time
    comments: bool = False  # a comment before every event
    line_end: str = "\n"
    split_bytes: int | None = None  # write every event in pieces of so many bytes, 1 ms apart
    merge_events: int = 1  # events written together
    usage: bool = True
    running_usage: bool = False
    token_ids: bool = False
    capacity: int | None = None  # requests served at once; others wait, as in a server's queue
    max_model_len: int = 32768
    close_on_reuse: bool = False  # close a connection, unanswered, when a second request comes over it
    behaviour: str = "ok"
    misbehave_every: int = 1  # the behaviour is for every so-many-th request; others are ok


@dataclass(slots=True)
class Truth:
    """One request as the server saw it; times are `time.monotonic_ns()`."""

    body: dict[str, Any]
    headers: dict[str, str]
    received_ns: int
    first_token_ns: int = 0
    token_times_ns: list[int] = field(default_factory=list)


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
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self.listen())
        self._loop.call_soon(ready.set)
        self._loop.run_forever()

    async def listen(self) -> None:
        server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self), "127.0.0.1", self.port, backlog=4096
        )
        self.port = server.sockets[0].getsockname()[1]

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


class _Connection(asyncio.Protocol):
    def __init__(self, server: MockServer) -> None:
        self._server = server
        self._data = b""
        self._used = False
        self._reply: _Reply | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._server.connections += 1

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
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
        self._answer(request_line.split(" ")[1], headers, rest[:length], now_ns)

    def _answer(self, path: str, headers: dict[str, str], body: bytes, now_ns: int) -> None:
        server, script = self._server, self._server.script
        if script.close_on_reuse and self._used:
            self._transport.close()
            return
        self._used = True
        if path == "/v1/models":
            card = {"id": "mock", "object": "model", "max_model_len": script.max_model_len}
            self._json(200, {"object": "list", "data": [card]})
            return
        truth = Truth(orjson.loads(body), headers, now_ns)
        server.truths.append(truth)
        behaviour = script.behaviour if len(server.truths) % script.misbehave_every == 0 else "ok"
        if behaviour in ("429", "500"):
            self._json(int(behaviour), {"error": {"message": "as scripted", "type": "server_error"}})
        elif behaviour == "not_http":
            self._transport.write(b"hello\r\n\r\n")
        else:
            self._reply = _Reply(server, self._transport, truth, chat="chat" in path, behaviour=behaviour)
            server.begin(self._reply.start)

    def connection_lost(self, error: Exception | None) -> None:
        if self._reply is not None:
            self._reply.end()

    def _json(self, status: int, payload: dict[str, Any]) -> None:
        body = orjson.dumps(payload)
        head = f"HTTP/1.1 {status} Scripted\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)


class _Reply:
    """Writes one stream at its scripted times, which are absolute and counted from `start`."""

    def __init__(
        self, server: MockServer, transport: asyncio.Transport, truth: Truth, *, chat: bool, behaviour: str
    ) -> None:
        self._server, self._script = server, server.script
        self._transport, self._truth = transport, truth
        self._chat, self._behaviour = chat, behaviour
        self._total = truth.body.get("max_tokens") or 16
        self._sent = 0
        self._begun = self._ended = False
        self._buffered: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        self._begun = True
        if self._ended:  # the client went away while queued
            self._server.end()
            return
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self._transport.write(head)
        self._start_s = self._loop.time()
        if self._script.head_event_s is not None:
            self._loop.call_at(self._start_s + self._script.head_event_s, self._event, self._choice("", 0))
        self._loop.call_at(self._start_s + self._script.ttft_s, self._tokens)

    def _tokens(self) -> None:
        """One chunk of tokens; then the next one is set for its own absolute time."""
        if self._ended:
            return
        count = min(self._script.tokens_per_chunk, self._total - self._sent)
        self._truth.token_times_ns += [time.monotonic_ns()] * count
        self._truth.first_token_ns = self._truth.first_token_ns or time.monotonic_ns()
        self._sent += count
        self._event(self._choice(self._script.token_text * count, count))
        if self._sent >= self._total:
            self._finish()
        elif self._behaviour in ("ok", "no_done") or self._sent * 2 < self._total:
            later = self._script.ttft_s + self._script.itl_s * self._sent
            self._loop.call_at(self._start_s + later, self._tokens)
        else:
            self._misbehave()

    def _misbehave(self) -> None:
        """Half-way through the output."""
        if self._behaviour == "stall":
            return
        if self._behaviour == "error":
            self._event({"error": {"message": "as scripted", "type": "server_error"}})
            self._finish(finish_reason=False)
            return
        self._write(self._framed(b'data: {"choices": [{"te') if self._behaviour == "cut" else b"")
        if self._behaviour == "malformed":
            self._write(self._framed(b"data: {oops}\n\n"))
            self._finish()
            return
        self._transport.close()

    def end(self) -> None:
        """Free the capacity; called when the answer is complete, and when the client goes away."""
        if self._begun and not self._ended:
            self._server.end()
        self._ended = True

    def _finish(self, finish_reason: bool = True) -> None:
        self._flush()
        if finish_reason:
            self._event(self._choice("", 0) | {"choices": [self._ending()]})
            if self._script.usage:
                self._event({"choices": [], "usage": self._usage()})
        if self._behaviour != "no_done":
            self._buffered.append(f"data: [DONE]{self._script.line_end * 2}".encode())
        self._flush()
        self._write(b"0\r\n\r\n")
        self.end()

    def _ending(self) -> dict[str, Any]:
        return {"index": 0, "finish_reason": "length", **({"delta": {}} if self._chat else {"text": ""})}

    def _choice(self, text: str, count: int) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": None, "logprobs": None}
        if self._chat:
            choice["delta"] = {"content": text} if count else {"role": "assistant", "content": ""}
        else:
            choice["text"] = text
        if self._script.token_ids and count:
            choice["token_ids"] = list(range(count))
        usage = self._usage() if self._script.running_usage else None
        return {"id": "cmpl-mock", "object": "text_completion", "choices": [choice], "usage": usage}

    def _usage(self) -> dict[str, Any]:
        prompt = self._truth.body.get("prompt") or ()
        details = {"cached_tokens": 0}
        return {
            "prompt_tokens": len(prompt), "completion_tokens": self._sent, "prompt_tokens_details": details
        }  # fmt: skip

    def _event(self, payload: dict[str, Any]) -> None:
        end = self._script.line_end
        comment = f": comment{end}{end}" if self._script.comments else ""
        self._buffered.append(f"{comment}data: ".encode() + orjson.dumps(payload) + (end * 2).encode())
        if len(self._buffered) >= self._script.merge_events:
            self._flush()

    def _flush(self) -> None:
        data, self._buffered = b"".join(self._buffered), []
        size = self._script.split_bytes or len(data)
        for at in range(0, len(data), size or 1):
            self._write(self._framed(data[at : at + size]))
            if size < len(data):
                time.sleep(0.001)  # so that the pieces are reads of their own on the other side

    def _framed(self, data: bytes) -> bytes:
        return f"{len(data):x}\r\n".encode() + data + b"\r\n"

    def _write(self, data: bytes) -> None:
        if data and not self._transport.is_closing():
            self._transport.write(data)


def main() -> None:
    """Serve with the script that the flags describe; they are the fields of `Script`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--port", type=int, default=8001)
    for name in ("ttft_s", "itl_s", "tokens_per_chunk", "head_event_s", "capacity"):
        default = next(item.default for item in fields(Script) if item.name == name)
        kind = float if name.endswith("_s") else int
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default)
    arguments = vars(parser.parse_args())
    server = MockServer(port=arguments.pop("port"), script=Script(**arguments))

    async def serve() -> None:
        await server.listen()
        print(f"mock server at {server.base_url}", flush=True)
        await asyncio.Event().wait()

    try:
        import uvloop
    except ImportError:
        run: Any = asyncio.run
    else:
        run = uvloop.run
    run(serve())


if __name__ == "__main__":
    main()
