"""Commands from other threads to the engine thread, in order."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Lock
from typing import NamedTuple

from engine.request import FinishReason, Request


class Submit(NamedTuple):
    request: Request


class Abort(NamedTuple):
    request_id: str


class Finish(NamedTuple):
    """End one sequence, of a request that may have others."""

    sequence_id: int
    reason: FinishReason


class ForgetPrefixes(NamedTuple):
    num_forgotten: Future[int]  # set when it is done


class Stop(NamedTuple):
    """End the loop."""


Command = Submit | Abort | Finish | ForgetPrefixes | Stop

MAX_TAKEN = 16
"""Most commands between two looks at what else there is to do: a burst must not hold up those that decode."""


class Inbox:
    """Any thread may `put` and ask how much is in it; the engine thread drains it."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Command] = SimpleQueue()
        self._lock = Lock()
        self._num_put = 0  # of `Submit` commands
        self._num_taken = 0  # likewise; the engine thread's

    def put(self, command: Command) -> None:
        if isinstance(command, Submit):
            with self._lock:
                self._num_put += 1
        self._queue.put(command)

    @property
    def num_submitted(self) -> int:
        """Requests that the engine thread has not taken out yet."""
        return self._num_put - self._num_taken

    def __len__(self) -> int:
        return self._queue.qsize()

    def take(self, wait_s: float = 0.0) -> Iterator[Command]:
        """The next commands, `MAX_TAKEN` at most; if there is none, wait up to `wait_s` for the first one."""
        if not wait_s and self._queue.empty():
            return
        try:
            yield self._took(self._queue.get(timeout=wait_s) if wait_s else self._queue.get_nowait())
            for _ in range(MAX_TAKEN - 1):
                yield self._took(self._queue.get_nowait())
        except Empty:
            return

    def _took(self, command: Command) -> Command:
        self._num_taken += isinstance(command, Submit)
        return command
