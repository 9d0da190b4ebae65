"""What a streamed token costs the event loop: N clients, one token each per step, no model.

    python benchmarks/stream_cost.py --streams 256 --step-ms 4

Prints CPU microseconds of the event loop's thread per token, the share of a step that this is, and how many
chunks carried more than one token (the loop was behind). The clients run in a process of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import threading
import time
from typing import Any

import uvicorn

from server.app import create_app
from server.config import ServerConfig
from tests.support.byte_text import byte_text_bundle
from tests.support.fake_engine import FakeEngine

WARM_UP_S = 1.0
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
        app, http="httptools", loop=loop, lifespan="on", log_level="error", access_log=False
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--step-ms", type=float, default=4.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    parser.add_argument("--chat", action="store_true", help="the chat endpoint instead of completions")
    options = parser.parse_args()

    text = byte_text_bundle()
    tokens = text.tokenizer.encode(SENTENCE, add_special_tokens=False)
    engine = FakeEngine(
        lambda request, index: tokens,
        text.tokenizer.vocab_size,
        max_model_len=1_000_000,
        max_queue=options.streams + 1,
        step_s=options.step_ms / 1e3,
    )
    app = create_app(engine, text, ServerConfig(served_model_name=("fake",)))
    sock = socket.create_server(("127.0.0.1", 0), backlog=4096)
    serve(app, options.loop, sock)
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if options.chat else {"prompt": "hi"}
    path = "/v1/chat/completions" if options.chat else "/v1/completions"
    context = multiprocessing.get_context("spawn")
    counts = context.Array("q", 2, lock=False)
    body = {**prompt, "stream": True, "max_tokens": 900_000}
    arguments = (sock.getsockname()[1], options.streams, path, body, counts)
    clients = context.Process(target=read_streams, args=arguments, daemon=True)
    clients.start()
    while engine.num_running < options.streams:
        time.sleep(0.05)
    time.sleep(WARM_UP_S)
    measure(app, engine, counts, options)
    clients.terminate()


def measure(app: Any, engine: FakeEngine, counts: Any, options: argparse.Namespace) -> None:
    steps, events, cpu, wall = engine.step, counts[0], loop_cpu_s(app), time.perf_counter()
    time.sleep(options.seconds)
    steps, events = engine.step - steps, counts[0] - events
    cpu, wall = loop_cpu_s(app) - cpu, time.perf_counter() - wall
    num_tokens = steps * options.streams
    print(f"{options.streams} streams, {options.loop}, {path_name(options)}, {wall:.1f} s")
    print(f"steps           {steps} ({wall / steps * 1e3:.2f} ms each, {options.step_ms:g} asked)")
    print(f"tokens          {num_tokens} ({num_tokens / wall:.0f} a second)")
    print(f"loop CPU        {cpu / num_tokens * 1e6:.2f} us a token, {cpu / wall:.0%} of one core")
    print(f"tokens a chunk  {num_tokens / events:.3f}")


def path_name(options: argparse.Namespace) -> str:
    return "chat" if options.chat else "completions"


if __name__ == "__main__":
    main()
