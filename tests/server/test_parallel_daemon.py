"""Two daemons of two ranks each on one host: they share nothing, and each ends with its ranks."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.case_model import save_case_model
from tests.support.process import ServerProcess, started, wait_until

PATIENCE_S = 10.0  # it takes about one second; test machines are busy
NUM_STREAMS = 3


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    folder: Path = tmp_path_factory.mktemp("parallel")
    save_case_model(folder)
    flags = ("--model", str(folder), "--dtype", "float32", "--num-kv-blocks", "512", "--block-size", "16")
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        starts = [started(*flags, "--tensor-parallel-size", "2") for _ in range(2)]
        yield list(pool.map(stack.enter_context, starts))


def workers_of(daemon: ServerProcess) -> list[psutil.Process]:
    return psutil.Process(daemon.process.pid).children(recursive=True)


def complete(daemon: ServerProcess, prompt: str) -> str:
    body = {"prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    answer = daemon.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def last_event(daemon: ServerProcess, has_begun: threading.Semaphore) -> Any:
    """Of a stream that would go on for long."""
    body = {"prompt": "On and on", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    events: list[Any] = []
    with httpx.stream("POST", f"{daemon.base_url}/v1/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line.removeprefix("data: ")))
                if len(events) == 2:
                    has_begun.release()
    return events[-1]


def test_they_serve_side_by_side_without_shared_memory(daemons: list[ServerProcess]) -> None:
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(complete, daemons * 2, ["One", "One", "Two", "Two"]))
    assert texts[0] == texts[1] and texts[2] == texts[3] and texts[0] != texts[2]
    for daemon in daemons:
        (worker,) = workers_of(daemon)
        for process in (worker, psutil.Process(daemon.process.pid)):
            mapped = [entry.path for entry in process.memory_maps()]
            assert not [path for path in mapped if path.startswith("/dev/shm")]


def test_a_killed_rank_ends_its_daemon_and_tells_every_stream(daemons: list[ServerProcess]) -> None:
    daemon, other = daemons
    has_begun = threading.Semaphore(0)
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        streams = [pool.submit(last_event, daemon, has_begun) for _ in range(NUM_STREAMS)]
        for _ in streams:
            assert has_begun.acquire(timeout=60)
        (worker,) = workers_of(daemon)
        worker.send_signal(signal.SIGKILL)
        assert daemon.process.wait(PATIENCE_S) == 1
        for stream in streams:
            assert stream.result(timeout=PATIENCE_S)["error"]["code"] == "engine_dead"
    assert not worker.is_running()
    assert daemon.process.stdout is not None
    assert "rank 1 was killed by SIGKILL" in daemon.process.stdout.read()
    assert complete(other, "Still there")


def test_sigterm_ends_all_ranks(daemons: list[ServerProcess]) -> None:
    daemon = daemons[1]
    workers = workers_of(daemon)
    daemon.process.terminate()
    assert daemon.process.wait(PATIENCE_S) == 0
    wait_until(lambda: not any(worker.is_running() for worker in workers), PATIENCE_S)
