"""Reported cases of clients that leave: nothing of theirs stays, and nobody else notices."""

from __future__ import annotations

import random
import socket
import struct
import time

import pytest

from tests.support.api import COMPLETIONS, complete, token_ids
from tests.support.process import ServerProcess, wait_until
from tests.support.raw_http import open_request

ENDLESS = {"prompt": "Once", "max_tokens": 2000, "ignore_eos": True}


def start(server: ServerProcess, stream: bool = True, **fields: object) -> socket.socket:
    return open_request(server.base_url, COMPLETIONS, {**ENDLESS, "stream": stream, **fields})


def test_a3_the_request_after_a_cut_stream_is_its_own(roomy: ServerProcess) -> None:
    expected = token_ids(roomy, "Next one", max_tokens=20)
    connection = start(roomy, temperature=0)
    assert connection.recv(200)
    connection.close()
    assert token_ids(roomy, "Next one", max_tokens=20) == expected


def test_a3_connections_that_end_in_any_way_leave_nothing(roomy: ServerProcess) -> None:
    """Reset, closed for sending only, closed with another request behind, closed within a body."""
    connections = [start(roomy, stream=i % 2 == 0, n=1 + i % 3) for i in range(24)]
    for i, connection in enumerate(connections):
        if i % 4 == 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif i % 4 == 1:
            connection.shutdown(socket.SHUT_WR)
            continue
        elif i % 4 == 2:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        else:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{")
        connection.close()
    roomy.wait_until_idle(5)
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_a5_a_storm_of_cancelled_requests(roomy: ServerProcess, seed: int) -> None:
    """Waiting, between schedule and update, half sent, just finished: each moment is hit by some."""
    expected = token_ids(roomy, "After the storm", max_tokens=20)
    rng = random.Random(seed)
    connections = [
        start(roomy, stream=rng.random() < 0.5, n=rng.choice([1, 1, 3]), max_tokens=rng.choice([4, 40, 2000]))
        for _ in range(100)
    ]
    rng.shuffle(connections)
    for connection in connections:
        time.sleep(rng.random() * 0.006)
        connection.close()
    roomy.wait_until_idle(10)
    assert token_ids(roomy, "After the storm", max_tokens=20) == expected


def test_a6_x1_all_cancelled_at_once(roomy: ServerProcess) -> None:
    aborted = roomy.metric("request_success_total", finished_reason="abort")
    connections = [start(roomy) for _ in range(20)]
    wait_until(lambda: roomy.metric("num_requests_running") == 8, 10)
    wait_until(lambda: roomy.metric("num_requests_waiting") == 12, 10)
    for connection in connections:
        connection.close()
    roomy.wait_until_idle(2)
    assert roomy.metric("request_success_total", finished_reason="abort") == aborted + 20
    generated = roomy.metric("generation_tokens_total")
    assert complete(roomy, "x", max_tokens=7, ignore_eos=True)["usage"]["completion_tokens"] == 7
    assert roomy.metric("generation_tokens_total") == generated + 7, "nothing goes on for nobody"
