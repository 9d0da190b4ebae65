"""Timers for tens of thousands of tokens a second."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

TICKS_PER_S = 1000  # about what event loops can tell apart


class Ticker:
    """Calls back at times of the event loop, all that are due in one millisecond from one timer of it: one
    for each would cost more than the write that it is for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: dict[int, list[Callable[[], None]]] = {}  # by tick

    def call_at(self, when_s: float, callback: Callable[[], None]) -> None:
        """`when_s` on the clock of `loop.time()`."""
        tick = math.ceil(when_s * TICKS_PER_S)
        if tick not in self._due:
            self._due[tick] = []
            self._loop.call_at(tick / TICKS_PER_S, self._fire, tick)
        self._due[tick].append(callback)

    def _fire(self, tick: int) -> None:
        for callback in self._due.pop(tick):
            callback()
