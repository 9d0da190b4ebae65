"""Ranks that die, fail, get stuck or lose their parent. The processes are real but import no torch."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable

import psutil
import pytest

from engine.parallel.link import Link
from engine.parallel.processes import start_processes
from engine.parallel.ranks import Rank, RankError, Ranks, Stage
from tests.support.process import wait_until

PARENT = """
import sys, time
from engine.parallel.processes import start_processes
ranks = start_processes(3)
print(*(rank._process.pid for rank in ranks), flush=True)
time.sleep(60)
"""


class FakeRank:
    """The other end of a link, in this thread."""

    def __init__(self, stages: Iterable[Stage] = Stage) -> None:
        ours, theirs = socket.socketpair()
        self.rank, self.link = Rank(1, Link(ours)), Link(theirs)
        for stage in stages:
            self.link.send(stage)


def failure_of(ranks: Ranks) -> str:
    """What the watcher tells, within its patience."""
    told: list[RankError] = []
    ranks.on_failure = told.append
    wait_until(lambda: bool(told), 5)
    ranks.stop()
    return str(told[0])


def test_the_ranks_of_a_killed_process_end() -> None:
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2 and all(psutil.pid_exists(pid) for pid in pids)
    process.kill()
    process.wait()
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), 5)


def test_ranks_leave_signals_to_rank_0_and_end_with_it() -> None:
    started = start_processes(2)
    ranks = Ranks(started, patience_s=60)
    process = started[0]._process
    assert process is not None
    wait_until(lambda: psutil.Process(process.pid).num_threads() > 1, 20)  # it handles signals by now
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    assert process.poll() is None
    ranks.stop()
    assert process.poll() == 0


def test_a_killed_rank_is_named() -> None:
    started = start_processes(2)
    ranks = Ranks(started, patience_s=60)
    assert started[0]._process is not None
    os.kill(started[0]._process.pid, signal.SIGKILL)
    assert failure_of(ranks) == "rank 1 was killed by SIGKILL"
    with pytest.raises(RankError, match="SIGKILL"):
        ranks.send(b"")


def test_an_error_of_a_rank_is_told() -> None:
    fake = FakeRank()
    ranks = Ranks([fake.rank], patience_s=60)
    ranks.wait_for(Stage.READY)
    fake.link.send(0, b"OutOfMemoryError: no room")
    assert failure_of(ranks) == "rank 1: OutOfMemoryError: no room"


def test_a_rank_that_answers_no_more_is_stuck() -> None:
    fake = FakeRank()
    ranks = Ranks([fake.rank], patience_s=0.3)
    ranks.wait_for(Stage.READY)
    time.sleep(0.6)  # without work there is nothing to answer
    ranks.send(b"one")
    assert failure_of(ranks) == "rank 1 has not answered a step for 0 s"


def test_ranks_that_do_not_come_together_are_named() -> None:
    fake = FakeRank([Stage.IMPORTED])
    ranks = Ranks([fake.rank], patience_s=60)
    with ranks.deadline(60, "in time"):
        ranks.wait_for(Stage.IMPORTED)
    with (
        ranks.deadline(0.1, "the ranks have not joined each other"),
        pytest.raises(RankError, match=r"not joined each other within 0 s \(rank 1: imported\)"),
    ):
        ranks.wait_for(Stage.JOINED)
    ranks.stop()


def test_a_start_that_hangs_in_a_library_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    codes: list[int] = []
    monkeypatch.setattr("engine.parallel.ranks._STOP_S", 0.1)
    monkeypatch.setattr("engine.parallel.ranks.os._exit", codes.append)
    fake = FakeRank([])
    ranks = Ranks([fake.rank], patience_s=60)
    with ranks.deadline(0.1, "the ranks have not joined each other"):
        wait_until(lambda: bool(codes), 5)
    assert codes == [1] and "not joined each other within 0 s (rank 1: not begun)" in caplog.text
    ranks.stop()


def test_a_pause_between_two_steps_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watcher looks at the worst moment, while the first step after the pause is being sent."""
    fake = FakeRank()
    ranks = Ranks([fake.rank], patience_s=60)
    ranks.wait_for(Stage.READY)
    fake.rank.waiting_since -= 3600
    take_answers = fake.rank.take_answers

    def take_and_look() -> None:
        take_answers()
        ranks._check_patience(fake.rank)

    monkeypatch.setattr(fake.rank, "take_answers", take_and_look)
    monkeypatch.setattr(fake.rank.link, "send", lambda number, payload: ranks._check_patience(fake.rank))
    ranks.send(b"one")
    assert ranks.failure is None
    ranks.stop()


def test_rank_0_gets_no_further_ahead_than_eight_steps() -> None:
    fake = FakeRank()
    ranks = Ranks([fake.rank], patience_s=60)
    ranks.wait_for(Stage.READY)
    sent: list[int] = []

    def send() -> None:
        for step in range(12):
            ranks.send(b"step %d" % step)
            sent.append(step)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    wait_until(lambda: len(sent) == 8, 5)
    time.sleep(0.2)
    assert len(sent) == 8
    for _ in range(12):
        number, _ = fake.link.receive()
        fake.link.send(number)
    sender.join(5)
    assert len(sent) == 12
    ranks.stop()
