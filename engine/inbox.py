"""Commands from other threads to the engine thread, in order."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import NamedTuple

from engine.request import FinishReason, Request


class Submit(NamedTuple):
    request: Request


class Abort(NamedTuple):
    request_id: str


class Finish(NamedTuple):
    sequence_id: int
    reason: FinishReason


class Stop(NamedTuple):
    """End the loop."""


Command = Submit | Abort | Finish | Stop


class Inbox:
    def __init__(self) -> None:
        self._queue: SimpleQueue[Command] = SimpleQueue()

    def put(self, command: Command) -> None:
        self._queue.put(command)

    def __len__(self) -> int:
        return self._queue.qsize()

    def drain(self, wait_s: float = 0.0) -> Iterator[Command]:
        """What is there now; if nothing is, wait up to `wait_s` for the first command."""
        try:
            yield self._queue.get(timeout=wait_s) if wait_s else self._queue.get_nowait()
            while True:
                yield self._queue.get_nowait()
        except Empty:
            return
