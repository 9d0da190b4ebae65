"""When the requests of a burst reach the engine: N clients connect and ask at once; no model.

    python benchmarks/burst.py --requests 512 --rounds 5

Serves the real routes over a fake engine, while processes of clients connect, send a request each as fast
as they can, and read one token. Printed for the requests in the order in which the engine gets them:
milliseconds from the first client's start to the first request, to a tenth, half and all of them; medians of
the rounds and their range. An engine that has a tenth of a burst computes while the rest come.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import socket
import statistics
import threading
import time
from typing import Any

from engine.request import Request
from server.app import create_app
from server.cli.process import prepare_process
from server.config import ServerConfig
from server.http.lifecycle import serve_until_stopped
from tests.support.byte_text import byte_text_bundle
from tests.support.fake_engine import FakeEngine

VOCAB_SIZE = 150_000
SHARES = (0.0, 0.1, 0.5, 1.0)  # of the requests, by when they had reached the engine
CONNECTED_S = 1.0  # for the server to accept what was connected first
STEP_S = 0.004  # of an engine that decodes few rows


class Arrivals(FakeEngine):
    """Notes when each request comes."""

    def submit(self, request: Request) -> None:
        super().submit(request)
        self.arrived_ns.append(time.monotonic_ns())

    def __post_init__(self) -> None:
        self.arrived_ns: list[int] = []
        super().__post_init__()


def ask_at_once(port: int, requests: list[bytes], connect_first: bool, began_ns: Any, ready: Any) -> None:
    """One process of clients: a connection a request, one after the other without a pause."""
    address = ("127.0.0.1", port)
    connections = [socket.create_connection(address) for _ in requests] if connect_first else []
    ready.wait()
    time.sleep(CONNECTED_S if connect_first else 0.0)
    began_ns.value = time.monotonic_ns()
    for i, request in enumerate(requests):
        if not connect_first:
            connections.append(socket.create_connection(address))
        connections[i].sendall(request)
    for connection in connections:
        tail = b""
        while b"[DONE]" not in tail:
            if not (data := connection.recv(65536)):
                raise RuntimeError(f"a stream ended early: {tail!r}")
            tail = tail[-16:] + data
        connection.close()


def completion(prompt: Any) -> bytes:
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "stream": True}
    content = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def burst(options: argparse.Namespace, engine: Arrivals, port: int) -> list[float]:
    """Milliseconds to each of `SHARES`."""
    rng = random.Random(0)
    ids = range(ord("a"), ord("z"))  # bytes of text to the tokenizer
    prompts = [
        "word " * options.tokens if options.text else rng.choices(ids, k=options.tokens)
        for _ in range(options.requests)
    ]
    requests = [completion(prompt) for prompt in prompts]
    context, n = multiprocessing.get_context("spawn"), options.processes
    ready = context.Barrier(n)
    began = [context.Value("q", 0) for _ in range(n)]
    clients = [
        context.Process(
            target=ask_at_once, args=(port, requests[i::n], options.connect_first, began[i], ready)
        )
        for i in range(n)
    ]
    engine.arrived_ns.clear()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    if any(client.exitcode for client in clients) or len(engine.arrived_ns) != options.requests:
        raise SystemExit("a client failed")
    began_ns, last = min(value.value for value in began), options.requests - 1
    return [(engine.arrived_ns[round(share * last)] - began_ns) / 1e6 for share in SHARES]


def measure(options: argparse.Namespace, engine: Arrivals, port: int) -> None:
    """All rounds, beside the server, which it ends."""
    try:
        rounds = [burst(options, engine, port) for _ in range(options.rounds + 1)][1:]  # the first warms up
        kind = "words of text" if options.text else "token ids"
        print(f"{options.requests} requests of {options.tokens} {kind}, {options.processes} client processes")
        for share, times in zip(SHARES, zip(*rounds, strict=True), strict=True):
            name = f"{share:.0%}" if share else "first"
            print(f"{name:>6} {statistics.median(times):8.1f} ms  ({min(times):.1f} to {max(times):.1f})")
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--text", action="store_true", help="prompts of words instead of token ids")
    parser.add_argument("--connect-first", action="store_true", help="all connections are open before")
    parser.add_argument("--processes", type=int, default=1, help="of clients")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    prepare_process("warning")
    text = byte_text_bundle()
    tokens = text.tokenizer.encode("The quick brown fox", add_special_tokens=False)
    engine = Arrivals(
        lambda request, index: tokens, VOCAB_SIZE,
        max_model_len=100_000, max_queue=options.requests + 1, step_s=STEP_S,
    )  # fmt: skip
    config = ServerConfig(served_model_name=("fake",))
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    rounds = threading.Thread(target=measure, args=(options, engine, port))
    serve_until_stopped(create_app(engine, text, config), engine, config, sock, on_ready=rounds.start)


if __name__ == "__main__":
    main()
