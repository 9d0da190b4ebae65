"""CPU time of a client's processes, against the times when its requests reached the server."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass

import numpy as np
import psutil

from benchmarks.loadgen.clients import TOKENS
from loadgen.mock import Script
from loadgen.selftest.mock_process import mock_process

SAMPLE_S = 0.1
TIMEOUT_S = 300.0
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_us: float  # for each `TOKENS` that the server sent meanwhile, which is a request
    offered_rps: float
    complete: int  # requests that were answered whole


def measure(command: list[str]) -> Cost:
    """Run a client to its end. Raises RuntimeError with its last words if it sent next to nothing."""
    with mock_process(Script()) as mock, tempfile.TemporaryFile() as log:
        command = [part.replace("{url}", mock.base_url) for part in command]
        environment = {**os.environ, **OFFLINE}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        times_ns, cpu_s = _sample(process)
        truths = mock.seen()
        log.seek(0)
        last_words = log.read().decode(errors="replace")[-2000:]
    received_ns = np.sort([truth.received_ns for truth in truths])
    if len(received_ns) < 20:
        raise RuntimeError(f"{command[:4]} sent {len(received_ns)} requests: {last_words}")
    window = received_ns[len(received_ns) // 10 : -(len(received_ns) // 10)]
    begin_ns, end_ns = window[[0, -1]]
    used_s = float(np.diff(np.interp([begin_ns, end_ns], times_ns, cpu_s))[0])
    tokens = sum(begin_ns <= time_ns < end_ns for truth in truths for time_ns in truth.token_times_ns)
    return Cost(
        cpu_us=used_s / (tokens / TOKENS) * 1e6,
        offered_rps=(len(received_ns) - 1) / float(received_ns[-1] - received_ns[0]) * 1e9,
        complete=sum(len(truth.token_times_ns) == TOKENS for truth in truths),
    )


def _sample(process: subprocess.Popen[bytes]) -> tuple[list[int], list[float]]:
    """(times, CPU seconds until then) of a process and its children, until it ends."""
    times_ns, cpu_s = [], []
    deadline_s = time.monotonic() + TIMEOUT_S
    while process.poll() is None:
        times_ns.append(time.monotonic_ns())
        cpu_s.append(max(_cpu_s(process.pid), cpu_s[-1] if cpu_s else 0.0))  # children may have ended
        time.sleep(SAMPLE_S)
        if time.monotonic() > deadline_s:
            os.killpg(process.pid, signal.SIGKILL)
    return times_ns, cpu_s


def _cpu_s(pid: int) -> float:
    total = 0.0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
    return total
