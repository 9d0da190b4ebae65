"""The event loop that serves: a turn takes few events, so that a burst's first requests are through first.

A request takes several turns: it is accepted, read, prepared beside the loop, handed to the engine. Turns
that took all events there are would bring a burst's requests along together, and the engine would get the
first of them when the last has been read (`benchmarks/burst.py`).
"""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from typing import Literal

EVENTS_A_TURN = 8
"""Sockets that are read or written, and connections that are accepted."""

Event = tuple[selectors.SelectorKey, int]


def new_event_loop(name: Literal["asyncio", "uvloop"]) -> asyncio.AbstractEventLoop:
    """uvloop has turns of its own."""
    if name == "uvloop":
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
    return asyncio.SelectorEventLoop(FewEventsSelector())


class FewEventsSelector(selectors.DefaultSelector):
    """Gives what is ready in portions, and asks for more only when all of it was given."""

    def __init__(self) -> None:
        super().__init__()
        self._ready: deque[Event] = deque()

    def select(self, timeout: float | None = None) -> list[Event]:
        """Up to `EVENTS_A_TURN` events, at once if some are left from before."""
        while self._ready:
            if events := self._next_events():
                return events
        self._ready.extend(super().select(timeout))
        return self._next_events()

    def _next_events(self) -> list[Event]:
        """Without those whose sockets were closed, or watched for something else, since they were ready."""
        portion = [self._ready.popleft() for _ in range(min(EVENTS_A_TURN, len(self._ready)))]
        watched = self.get_map()
        return [(key, events) for key, events in portion if watched.get(key.fileobj) is key]
