"""What a streamed token costs the event loop: N clients, one token each per step, no model.

    python benchmarks/stream_cost.py --streams 256 --step-ms 20 --rounds 5

Serves the real routes over a fake engine, and clients in a process of their own read the streams. For each
kind of request, in turns: CPU microseconds of the event loop's thread per token (the median of the rounds and
the range), the share of a core that this is, and how many tokens a chunk carried (above 1: the loop was late,
or a stop string held text back). The last line is the floor: the bare `send` calls for so many bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvicorn

from server.app import create_app
from server.config import ServerConfig
from server.http.connection import HttpProtocol
from tests.support.byte_text import byte_text_bundle
from tests.support.fake_engine import FakeEngine

WARM_UP_S = 1.0
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stop strings": {"stop": ["fox runs", "\n\n", "The end"]},
    "logprobs": {"logprobs": 5},
    "usage in each": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
}
SENTENCE = "The quick brown fox jumps over the lazy dog. "


def read_streams(port: int, num_streams: int, path: str, body: dict[str, Any], counts: Any) -> None:
    """Open the streams and read them until they end; counts bytes and events."""

    async def read_one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        content = json.dumps(body).encode()
        headers = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
        writer.write(f"POST {path} HTTP/1.1\r\n{headers}\r\n\r\n".encode() + content)
        while data := await reader.read(65536):
            counts[0] += data.count(b"data: ")
            counts[1] += len(data)

    async def main() -> None:
        await asyncio.gather(*(read_one() for _ in range(num_streams)))

    asyncio.run(main())


def serve(app: Any, loop: str, sock: socket.socket) -> tuple[uvicorn.Server, threading.Thread]:
    config = uvicorn.Config(
        app, http=HttpProtocol, loop=loop, lifespan="on", log_level="error", access_log=False
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    return server, thread


def loop_cpu_s(app: Any) -> float:
    """CPU time of the event loop's thread, read on that thread."""
    result: list[float] = []
    done = threading.Event()

    def read() -> None:
        result.append(time.thread_time())
        done.set()

    app.state.server.delivery.loop.call_soon_threadsafe(read)
    done.wait()
    return result[0]


@dataclass(frozen=True, slots=True)
class Reading:
    """What one run of one kind of request gave."""

    cpu_us: float  # of the loop's thread, a token
    share: float  # of one core
    tokens_per_chunk: float
    bytes_per_chunk: float


class Bench:
    """A server over a fake engine, which stays up for all runs."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        text = byte_text_bundle()
        tokens = text.tokenizer.encode(SENTENCE, add_special_tokens=False)
        self.engine = FakeEngine(
            lambda request, index: tokens,
            text.tokenizer.vocab_size,
            max_model_len=1_000_000,
            max_queue=options.streams + 1,
            step_s=options.step_ms / 1e3,
        )
        self.app = create_app(self.engine, text, ServerConfig(served_model_name=("fake",)))
        sock = socket.create_server(("127.0.0.1", 0), backlog=4096)
        serve(self.app, options.loop, sock)
        self.port = sock.getsockname()[1]

    def run(self, fields: dict[str, Any]) -> Reading:
        """Open all streams, let them run for a while, measure, and cut them."""
        prompt = {"messages": [{"role": "user", "content": "hi"}]} if self.options.chat else {"prompt": "hi"}
        path = "/v1/chat/completions" if self.options.chat else "/v1/completions"
        body = {**prompt, "stream": True, "max_tokens": 900_000, **fields}
        if self.options.chat and "logprobs" in body:
            body |= {"logprobs": True, "top_logprobs": body["logprobs"]}
        context = multiprocessing.get_context("spawn")
        counts = context.Array("q", 2, lock=False)
        arguments = (self.port, self.options.streams, path, body, counts)
        clients = context.Process(target=read_streams, args=arguments, daemon=True)
        clients.start()
        wait_until(lambda: self.engine.num_running == self.options.streams)
        time.sleep(WARM_UP_S)
        reading = self._measure(counts)
        clients.terminate()
        clients.join()
        wait_until(lambda: self.engine.num_running == 0)
        return reading

    def _measure(self, counts: Any) -> Reading:
        before = self.engine.step, counts[0], counts[1], loop_cpu_s(self.app), time.perf_counter()
        time.sleep(self.options.seconds)
        after = self.engine.step, counts[0], counts[1], loop_cpu_s(self.app), time.perf_counter()
        steps, chunks, num_bytes, cpu, wall = (b - a for a, b in zip(before, after, strict=True))
        num_tokens = steps * self.options.streams
        return Reading(cpu / num_tokens * 1e6, cpu / wall, num_tokens / chunks, num_bytes / chunks)


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.05)


def send_us(num_bytes: int) -> float:
    """CPU of one `send` on a local connection whose reader keeps up: no stream can cost less."""
    listener = socket.create_server(("127.0.0.1", 0))
    writer = socket.create_connection(listener.getsockname())
    reader, _ = listener.accept()
    data, repeats, cpu = b"x" * num_bytes, 2000, 0.0
    for _ in range(repeats):
        start = time.thread_time()
        writer.send(data)
        cpu += time.thread_time() - start
        reader.recv(65536)
    return cpu / repeats * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--chat", action="store_true", help="the chat endpoint instead of completions")
    options = parser.parse_args()
    bench = Bench(options)
    readings: dict[str, list[Reading]] = {kind: [] for kind in options.kinds}
    for _ in range(options.rounds):
        for kind in options.kinds:
            readings[kind].append(bench.run(KINDS[kind]))
    endpoint = "chat" if options.chat else "completions"
    print(f"{options.streams} streams, a step every {options.step_ms:g} ms, {options.loop}, {endpoint}")
    print("kind            us a token  (range)         of a core  tokens a chunk  bytes a chunk")
    for kind, rounds in readings.items():
        costs = [reading.cpu_us for reading in rounds]
        middle = sorted(rounds, key=lambda reading: reading.cpu_us)[len(rounds) // 2]
        print(
            f"{kind:15} {statistics.median(costs):10.1f}  ({min(costs):.1f} to {max(costs):.1f})"
            f"{middle.share:14.0%} {middle.tokens_per_chunk:15.2f} {middle.bytes_per_chunk:14.0f}"
        )
    num_bytes = round(readings[options.kinds[0]][0].bytes_per_chunk)
    print(f"{'send alone':15} {send_us(num_bytes):10.1f}")


if __name__ == "__main__":
    main()
