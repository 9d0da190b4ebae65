"""The real server: `octavo serve` in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

START_TIMEOUT_S = 120


@dataclass
class ServerProcess:
    process: subprocess.Popen[str]
    base_url: str
    http: httpx.Client

    def metric(self, name: str, *, absent: float | None = None, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels; `name` without the prefix.

        `absent` is for those that are not there before the first event.
        """
        text = self.http.get("/metrics").text
        samples = [
            sample
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"octavo:{name}" and labels.items() <= sample.labels.items()
        ]
        if not samples:
            assert absent is not None, f"no metric {name}"
            return absent
        return sum(sample.value for sample in samples)

    def is_idle(self) -> bool:
        gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return all(self.metric(name) == 0 for name in gauges)

    def wait_until_idle(self, timeout_s: float) -> None:
        wait_until(self.is_idle, timeout_s)


def wait_until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not so within {timeout_s} s"
        time.sleep(0.02)


@contextmanager
def serving(*flags: str) -> Iterator[ServerProcess]:
    """Yields when the server has told its address; it must end in good order on SIGTERM."""
    with started(*flags) as server:
        yield server
        server.process.terminate()
        assert server.process.wait(timeout=30) == 0


@contextmanager
def started(*flags: str) -> Iterator[ServerProcess]:
    """Like `serving`, but it may end as it will."""
    command = [sys.executable, "-m", "server.cli.main", "serve", "--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        base_url = _read_address(process)
        # One client for all, since each new one takes a while to read the machine's certificates.
        with httpx.Client(base_url=base_url, timeout=120, verify=False) as http:
            yield ServerProcess(process, base_url, http)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _read_address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    lines = []
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        line = process.stdout.readline()
        lines.append(line)
        found = re.search(r"serves .* at (http://\S+?),? ", line)
        if found:
            return found[1]
        if not line and process.poll() is not None:
            break
    raise AssertionError("the server did not start:\n" + "".join(lines))
