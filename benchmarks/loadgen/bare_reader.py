"""The least that a client in Python does: send at the times, wait, read with the kernel's times, and keep.

    python -m benchmarks.loadgen.bare_reader URL RATE REQUESTS INPUT_TOKENS OUTPUT_TOKENS

It parses and records nothing, and takes the end of a response from how its bytes end. What another client
uses beyond it is that client's own; what it uses itself is the price of the reads and of waking up for them.
"""

from __future__ import annotations

import gc
import json
import select
import socket
import sys
import time
from urllib.parse import urlsplit

from loadgen.sockets import ANCILLARY_BYTES, READ_BYTES, SO_TIMESTAMPNS

LAST_CHUNK = b"0\r\n\r\n"
SPARE_S = 2.0  # so many seconds' requests have a connection opened in advance


def request_bytes(host: str, input_tokens: int, output_tokens: int) -> bytes:
    prompt = list(range(input_tokens))
    body = json.dumps({"model": "mock", "prompt": prompt, "max_tokens": output_tokens, "stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


def connect(address: tuple[str, int]) -> socket.socket:
    connected = socket.create_connection(address)
    connected.setblocking(False)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return connected


def main(url: str, rate: float, requests: int, input_tokens: int, output_tokens: int) -> None:
    split = urlsplit(url)
    payload = request_bytes(split.netloc, input_tokens, output_tokens)
    epoll = select.epoll()
    sockets: dict[int, socket.socket] = {}
    kept: dict[int, list[object]] = {}

    def opened() -> socket.socket:
        connected = connect((str(split.hostname), split.port or 80))
        sockets[connected.fileno()] = connected
        kept[connected.fileno()] = []
        epoll.register(connected.fileno(), select.EPOLLIN)
        return connected

    idle = [opened() for _ in range(round(SPARE_S * rate))]
    gc.freeze()
    gc.disable()
    sent = ended = 0
    start_s = time.monotonic()
    while ended < requests:
        wait_s = start_s + sent / rate - time.monotonic() if sent < requests else None
        if wait_s is not None and wait_s <= 0:
            (idle.pop() if idle else opened()).send(payload)
            sent += 1
            continue
        for descriptor, _ in epoll.poll(wait_s):
            read = sockets[descriptor].recvmsg(READ_BYTES, ANCILLARY_BYTES)
            if not read[0]:
                sys.exit("the server closed a connection")
            kept[descriptor].append(read)
            if read[0].endswith(LAST_CHUNK):
                ended += 1
                kept[descriptor] = []
                idle.append(sockets[descriptor])


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:]))
