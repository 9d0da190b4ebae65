"""Ranks 1 and up as rank 0 sees them: it sends steps, sees when one dies or gets stuck, and ends them."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NamedTuple

from engine.parallel.link import Link, LinkClosedError

logger = logging.getLogger(__name__)

_MAX_UNANSWERED = 8  # messages; rank 0 gets no further ahead of any rank
_WATCH_INTERVAL_S = 0.1
_LAST_WORDS_S = 1.0
_STOP_S = 5.0


class RankError(RuntimeError):
    """A rank has ended, failed or got stuck. Nothing can be computed without it."""


class Stage(IntEnum):
    """What a rank tells of its start, by a message of that number. Steps are numbered from there on."""

    IMPORTED = 1  # the set-up is read; it is about to join the others
    JOINED = 2
    LOADED = 3
    READY = 4  # for steps


class _Deadline(NamedTuple):
    at_s: float  # time.monotonic
    message: str


class Rank:
    """One other rank, and how far it has come. Any thread may call any method."""

    def __init__(self, rank: int, link: Link, process: subprocess.Popen[bytes] | None = None) -> None:
        """Without a process the rank is a thread of this one."""
        self.rank = rank
        self.link = link
        self.answered = 0  # the number of the last message that it has answered
        self.waiting_since = time.monotonic()  # for its next answer
        self._process = process
        self._taking = threading.Lock()  # else the thread with the older answers might note them last

    def expect(self, number: int) -> None:
        """Say that message `number` is about to be sent: unless others are unanswered, its time begins."""
        if self.answered == number - 1:
            self.waiting_since = time.monotonic()

    def send(self, number: int, payload: bytes) -> None:
        """Raises `RankError` if the rank has ended."""
        try:
            self.link.send(number, payload)
        except LinkClosedError:
            raise self._death() from None

    def take_answers(self) -> None:
        """Those that are there. Raises `RankError` if it has failed or ended."""
        with self._taking:
            try:
                messages = self.link.receive_ready()
            except LinkClosedError:
                raise self._death() from None
            for number, error in messages:
                if error:
                    raise RankError(f"rank {self.rank}: {error.decode(errors='replace')}")
                self.answered = number
                self.waiting_since = time.monotonic()

    def stop(self, deadline: float) -> None:
        """It ends by itself once its link is closed; if it has not by the deadline, it is killed."""
        self.link.close()
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def progress(self) -> str:
        """How far its start has come."""
        stage = Stage(min(self.answered, Stage.READY)).name.lower() if self.answered else "not begun"
        return f"rank {self.rank}: {stage}"

    def _death(self) -> RankError:
        code = None
        if self._process is not None:
            try:
                code = self._process.wait(_LAST_WORDS_S)
            except subprocess.TimeoutExpired:
                code = None
        if code is None:
            return RankError(f"rank {self.rank} has closed its link")
        if code < 0:
            return RankError(f"rank {self.rank} was killed by {signal.Signals(-code).name}")
        return RankError(f"rank {self.rank} ended with exit code {code}")


class Ranks:
    """All other ranks. A thread watches them from the start; `send` is for one thread at a time."""

    def __init__(self, ranks: list[Rank], patience_s: float) -> None:
        """A rank that leaves a step unanswered for `patience_s` is stuck."""
        self.failure: RankError | None = None
        self.on_failure: Callable[[RankError], None] = self._end_start
        self._ranks = ranks
        self._patience_s = patience_s
        self._sent = int(Stage.READY)
        self._deadline: _Deadline | None = None
        self._failed = threading.Event()
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="octavo-ranks", daemon=True).start()

    def set_up(self, payloads: list[bytes]) -> None:
        """The first message, one of its own for each rank."""
        for rank, payload in zip(self._ranks, payloads, strict=True):
            rank.send(0, payload)

    def wait_for(self, number: int) -> None:
        """Until all have answered the message of that number, or come to that stage. Raises `RankError`."""
        for rank in self._ranks:
            while rank.answered < number:
                self.raise_failure()
                rank.take_answers()
                if rank.answered < number:
                    select.select([rank.link], [], [], _WATCH_INTERVAL_S)

    @contextmanager
    def deadline(self, seconds: float, message: str) -> Iterator[None]:
        """For a part of the start in which all ranks wait for each other, this one in a library perhaps.

        After so many seconds that is a failure, which tells `message` and how far each rank has come.
        """
        self._deadline = _Deadline(time.monotonic() + seconds, f"{message} within {seconds:.0f} s")
        try:
            yield
        finally:
            self._deadline = None

    def send(self, payload: bytes) -> None:
        """The next step, to all. Waits only for a rank that is far behind. Raises `RankError`."""
        self.raise_failure()
        number = self._sent + 1
        for rank in self._ranks:
            rank.take_answers()
        self.wait_for(number - _MAX_UNANSWERED)
        for rank in self._ranks:
            rank.expect(number)
        self._sent = number  # only now, or the watcher would take a pause before it for its silence
        for rank in self._ranks:
            rank.send(number, payload)

    def raise_failure(self) -> None:
        """Raise `RankError` if a rank has failed."""
        if self.failure is not None:
            raise self.failure

    def explain(self, error: Exception) -> Exception:
        """What failed in this process may have failed for a rank that died under it, and says little then."""
        if isinstance(error, RuntimeError) and not isinstance(error, RankError):
            self._failed.wait(_LAST_WORDS_S)
            return self.failure or error
        return error

    def stop(self) -> None:
        """End all ranks; returns when their processes have ended."""
        self._stopped.set()
        deadline = time.monotonic() + _STOP_S
        for rank in self._ranks:
            rank.stop(deadline)

    def _watch(self) -> None:
        while not self._stopped.wait(_WATCH_INTERVAL_S):
            try:
                self._check_deadline()
                for rank in self._ranks:
                    rank.take_answers()
                    self._check_patience(rank)
            except RankError as error:
                if not self._stopped.is_set():
                    self.failure = error
                    self._failed.set()
                    self.on_failure(error)
                return

    def _check_deadline(self) -> None:
        deadline = self._deadline
        if deadline is not None and time.monotonic() > deadline.at_s:
            raise RankError(f"{deadline.message} ({', '.join(rank.progress for rank in self._ranks)})")

    def _check_patience(self, rank: Rank) -> None:
        silence_s = time.monotonic() - rank.waiting_since
        if Stage.READY <= rank.answered < self._sent and silence_s > self._patience_s:
            raise RankError(f"rank {rank.rank} has not answered a step for {silence_s:.0f} s")

    def _end_start(self, error: RankError) -> None:
        """While the engine is set up: what waits for a dead rank on a GPU can only be ended from outside."""
        if not self._stopped.wait(_STOP_S):
            logger.error("%s", error)
            os._exit(1)
