"""Sends a schedule at its absolute times, whatever the server does, and collects a result for every request.

Open loop: a request that is overdue goes out late and is charged for it; none is dropped or moved.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from loadgen.client import ConnectionPool, Exchange
from loadgen.measure import RequestResult, measure
from loadgen.schedule import ScheduledRequest
from loadgen.timer import make_timer

START_DELAY_NS = 50_000_000  # between the last preparation and time 0 of the schedule
TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request with its bytes made, as pieces that may be shared with other requests."""

    scheduled: ScheduledRequest
    request_id: str
    payload: Sequence[bytes]


class Replay:
    """One run. `on_result` gets each result as its request ends, `on_tick` a call about every 0.1 s."""

    def __init__(
        self,
        pool: ConnectionPool,
        requests: list[PreparedRequest],
        *,
        timeout_s: float,
        max_inflight: int | None,
        on_result: Callable[[RequestResult], None],
        on_tick: Callable[[Replay], None],
    ) -> None:
        self.finished = self.failed = 0
        self.interrupted = False
        self._pool = pool
        self._requests = requests
        self._timeout_ns = round(timeout_s * 1e9)
        self._max_inflight = max_inflight or len(requests)
        self._on_result = on_result
        self._on_tick = on_tick
        self._next = 0  # the first request that is not due yet
        self._start_ns = 0
        self._waiting: deque[Exchange] = deque()  # due, held back by max_inflight
        self._flying: dict[int, Exchange] = {}  # by index, in order of dispatch
        self._ended: deque[Exchange] = deque()  # to be measured between two events of the loop
        self._all_done = asyncio.Event()

    @property
    def in_flight(self) -> int:
        return len(self._flying)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def run(self) -> None:
        """Returns when every request has ended, or after `interrupt`."""
        loop = asyncio.get_running_loop()
        self._timer = make_timer(loop, self._release_due)
        with _no_collections(), _on_sigint(loop, self.interrupt):
            self._start_ns = time.monotonic_ns() + START_DELAY_NS
            self._release_due()
            while not self._all_done.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._all_done.wait(), TICK_S)
                self._cancel_overtime()
                self._on_tick(self)
        self._timer.close()

    def interrupt(self) -> None:
        """Send nothing more and cancel what is in flight; requests that were not due have no result."""
        self.interrupted = True
        self._timer.close()
        self._requests = self._requests[: self._next]
        for exchange in [*self._flying.values(), *self._waiting]:
            self._pool.cancel(exchange, "cancelled", "the run was interrupted")
        self._waiting.clear()
        if not self._ended:
            self._all_done.set()

    def _release_due(self) -> None:
        """Dispatch all that is due and ask to be woken for the next."""
        while self._next < len(self._requests):
            request = self._requests[self._next]
            due_ns = self._start_ns + request.scheduled.intended_ns
            now_ns = time.monotonic_ns()
            if due_ns > now_ns:
                self._timer.wake_at(due_ns)
                return
            exchange = Exchange(request.payload, self._next, dispatched_ns=now_ns, done=self._exchange_ended)
            self._next += 1
            if len(self._flying) < self._max_inflight:
                self._send(exchange)
            else:
                self._waiting.append(exchange)

    def _send(self, exchange: Exchange) -> None:
        self._flying[exchange.index] = exchange
        self._pool.submit(exchange)

    def _exchange_ended(self, exchange: Exchange) -> None:
        self._flying.pop(exchange.index, None)
        while self._waiting and len(self._flying) < self._max_inflight and not self.interrupted:
            self._send(self._waiting.popleft())
        self._ended.append(exchange)
        if len(self._ended) == 1:
            asyncio.get_running_loop().call_soon(self._measure_one)

    def _measure_one(self) -> None:
        """Measure one request a turn of the loop, so that reading long streams delays no send for long."""
        exchange = self._ended[0]
        request = self._requests[exchange.index]
        result = measure(request.scheduled, request.request_id, exchange, self._start_ns)
        self.finished += 1
        self.failed += not result.ok
        self._on_result(result)
        self._ended.popleft()
        if self._ended:
            asyncio.get_running_loop().call_soon(self._measure_one)
        elif self.finished == len(self._requests):
            self._all_done.set()

    def _cancel_overtime(self) -> None:
        """The timeout runs from submission; requests fly in that order, so the oldest come first."""
        limit_ns = time.monotonic_ns() - self._timeout_ns
        for exchange in list(self._flying.values()):
            if exchange.submitted_ns > limit_ns:
                break
            self._pool.cancel(exchange, "timeout", f"no complete answer in {self._timeout_ns / 1e9:g} s")


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Without the garbage collector's pauses: what exists is frozen, and the run makes few cycles."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextlib.contextmanager
def _on_sigint(loop: asyncio.AbstractEventLoop, handler: Callable[[], None]) -> Iterator[None]:
    """Call `handler` on SIGINT; in a thread that gets no signals, as in tests, do nothing."""
    try:
        loop.add_signal_handler(signal.SIGINT, handler)
    except (ValueError, RuntimeError, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
