"""Several processes send one schedule: nothing is lost, doubled or drawn anew, and it is still Poisson."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.figures.load import dispersion
from loadgen.mock import MockServer, Script
from loadgen.record import Run, read_run
from loadgen.run.worker import share_of
from loadgen.schedule import ScheduledRequest
from tests.support.examples import examples

from .test_arrivals import distance_from_exponential

# The machine may starve both sides for a second; what fails three times in a row is wrong.
pytestmark = pytest.mark.flaky(reruns=2)

REQUESTS, RATE = 300, 150
FREE_OF_LAG = ["--lag-limits", "1e5,1e5,1e5"]
FAST = Script(ttft_s=0.005, itl_s=0.001)


def command(server: MockServer, record: Path, workers: int, *flags: str) -> list[str]:
    base = [sys.executable, "-m", "loadgen", "load", "--base-url", server.base_url, "--workers", str(workers)]
    return [*base, "--output-tokens", "2", "--input-tokens", "8", "--output", str(record), *flags]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Run, MockServer]]:
    """By number of workers: the run, and the server that saw it."""
    found = {}
    for workers in (1, 2, 4):
        record = tmp_path_factory.mktemp("workers") / str(workers)
        flags = [
            "--rate",
            str(RATE),
            "--requests",
            str(REQUESTS),
            "--lag-limits",
            "1e5,1e5,1e5",
            "--nonce",
            "7",
        ]
        with MockServer(FAST) as server:
            subprocess.run(command(server, record, workers, *flags), check=True, capture_output=True)
        found[workers] = read_run(record), server
    return found


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_each_request_is_sent_once_and_never_early(
    runs: dict[int, tuple[Run, MockServer]], workers: int
) -> None:
    run, server = runs[workers]
    ids = [truth.headers["x-request-id"] for truth in server.truths]
    assert len(ids) == len(set(ids)) == REQUESTS == len(run.results)
    assert all(r.ok and r.sent_ns is not None and r.sent_ns >= r.intended_ns for r in run.results)
    shares = np.bincount([result.worker for result in run.results])
    assert len(shares) == workers == len(run.ends) and shares.max() - shares.min() <= 1


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_merged_arrivals_are_poisson(runs: dict[int, tuple[Run, MockServer]], workers: int) -> None:
    """Workers with equal seeds would repeat each gap once for each of them."""
    due = np.sort([result.intended_ns for result in runs[workers][0].results])
    assert distance_from_exponential(np.diff(due)) < 1.63 / np.sqrt(REQUESTS - 1)  # the 1 % level
    assert dispersion(due * 10) == pytest.approx(1, abs=0.8)  # counts of a tenth of a second
    assert REQUESTS / (due[-1] / 1e9) == pytest.approx(RATE, rel=0.2)


def test_schedule_and_bodies_do_not_depend_on_the_workers(runs: dict[int, tuple[Run, MockServer]]) -> None:
    alone, server = runs[1]
    prompts = sorted(truth.body["prompt"] for truth in server.truths)
    for workers in (2, 4):
        run, other = runs[workers]
        assert [r.intended_ns for r in run.results] == [r.intended_ns for r in alone.results]
        assert sorted(truth.body["prompt"] for truth in other.truths) == prompts


@examples(60)
@given(workers=st.integers(1, 5), chains=st.lists(st.integers(-1, 30), max_size=40))
def test_shares_are_disjoint_and_keep_chains_together(workers: int, chains: list[int]) -> None:
    requests: list[ScheduledRequest] = []
    for index, previous in enumerate(chains):
        before = requests[previous] if 0 <= previous < index else None
        requests.append(ScheduledRequest(index, 0, 1, 1, index, previous=before, follows=before is not None))
    shares = [share_of(requests, worker, workers) for worker in range(workers)]
    assert sorted(request.index for share in shares for request in share) == list(range(len(requests)))
    for share in shares:
        mine = {request.index for request in share}
        assert all(request.previous is None or request.previous.index in mine for request in share)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_early_can_be_read(tmp_path: Path, sign: signal.Signals) -> None:
    record = tmp_path / "run"
    with MockServer(FAST) as server:
        process = subprocess.Popen(command(server, record, 2, "--rate", "20", "--requests", "2000"))
        deadline = time.monotonic() + 60
        while len(server.truths) < 15 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(process.pid, sign)
        code = process.wait(timeout=60)
        sent = len(server.truths)
        time.sleep(1.0)
        assert len(server.truths) <= sent + 40  # the workers ended too
    assert code == (130 if sign == signal.SIGINT else -sign)
    run = read_run(record)
    assert 5 <= len(run.results) < 2000
    assert len(run.ends) == 2 and all(end["interrupted"] for end in run.ends)


def test_a_worker_that_dies_is_told(tmp_path: Path) -> None:
    """It cannot connect: the server is gone once the run begins."""
    with MockServer(FAST) as server:
        flags = ["--rate", "5", "--requests", "4", "--timeout", "5"]
        good = command(server, tmp_path / "a", 2, *flags)
        assert subprocess.run(good, capture_output=True).returncode in (0, 3)
    gone = subprocess.run(command(server, tmp_path / "b", 2, *flags), capture_output=True, text=True)
    assert gone.returncode == 4 and "connect_refused" in gone.stderr
