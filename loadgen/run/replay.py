"""Sends a schedule at its absolute times, whatever the server does, and collects a result for every request.

Open loop: a request that is overdue goes out late and is charged for it; none is dropped or moved.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loadgen.client import ConnectionPool, Exchange
from loadgen.client.measure import measure
from loadgen.garbage import no_collections
from loadgen.record.result import RequestResult
from loadgen.run.patience import Watch
from loadgen.run.retry import retry_delay_ns
from loadgen.run.timer import make_timer
from loadgen.schedule import NS_PER_S, ScheduledRequest

LEAD_NS = 100_000  # a timer wakes some 50 us late, and making a request ready takes about as long
BEAT_S = 0.01  # how often the event loop is looked at for stalls
BEATS_PER_TICK = 10


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request with its bytes made, as pieces that may be shared with other requests."""

    scheduled: ScheduledRequest
    request_id: str
    payload: Sequence[bytes]


class _Due(NamedTuple):
    """Something to be sent, in the order of `release_ns`. Times are of the monotonic clock."""

    release_ns: int
    place: int  # in the list of requests
    due_ns: int  # what latencies run from; earlier than release_ns for a further attempt
    attempt: int


class Replay:
    """One run of some requests of a schedule. All others that they follow must be among them.

    `on_result` gets the result of each attempt when it ends, `on_tick` a call about every 0.1 s.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        requests: Sequence[PreparedRequest],
        *,
        watch: Watch,
        max_inflight: int | None = None,
        retries: int = 0,
        stop_after_s: float | None = None,
        on_result: Callable[[RequestResult], None],
        on_tick: Callable[[Replay], None],
    ) -> None:
        self.sent = self.finished = self.failed = 0
        self.max_lag_ns = self.max_stall_ns = 0
        self.interrupted = False
        self._pool = pool
        self._requests = requests
        self._watch = watch
        self._max_inflight = max_inflight or len(requests)
        self._retries = retries
        self._stop_after_ns = None if stop_after_s is None else round(stop_after_s * NS_PER_S)
        self._on_result, self._on_tick = on_result, on_tick
        self._followers = _followers(requests)
        self._due: list[_Due] = []  # a heap
        self._waiting: deque[Exchange] = deque()  # due, held back by max_inflight
        self._flying: dict[int, Exchange] = {}  # by place, in order of dispatch
        self._ended: deque[Exchange] = deque()  # to be measured between two events of the loop
        self._all_done = asyncio.Event()

    @property
    def in_flight(self) -> int:
        return len(self._flying)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def run(self, start_ns: int) -> None:
        """`start_ns` of the monotonic clock is time 0 of the schedule. Returns when every request has ended,
        or after `interrupt`."""
        self._loop = asyncio.get_running_loop()
        self._start_ns = start_ns
        self._stop_ns = None if self._stop_after_ns is None else start_ns + self._stop_after_ns
        self._timer = make_timer(self._loop, self._release_due)
        with no_collections(), _on_sigint(self._loop, self.interrupt):
            for place, request in enumerate(self._requests):
                if not request.scheduled.follows:
                    self._plan(start_ns + request.scheduled.intended_ns, place)
            self._release_due()
            self._check_done()
            self._beats, self._last_beat_ns = 0, time.monotonic_ns()
            self._next_beat = self._loop.call_later(BEAT_S, self._beat)
            await self._all_done.wait()
            self._next_beat.cancel()
            self._on_tick(self)
        self._timer.close()

    def interrupt(self) -> None:
        """Send nothing more and cancel what is in flight; requests that were not due have no result."""
        self.interrupted = True
        self._due.clear()
        self._followers.clear()
        waiting, self._waiting = self._waiting, deque()
        for exchange in [*self._flying.values(), *waiting]:
            self._pool.cancel(exchange, "cancelled", "the run was interrupted")
        self._check_done()

    def _beat(self) -> None:
        """Notes how late it is itself: nothing else on the loop, a read included, was sooner."""
        now_ns = time.monotonic_ns()
        self.max_stall_ns = max(self.max_stall_ns, now_ns - self._last_beat_ns - round(BEAT_S * NS_PER_S))
        self._beats, self._last_beat_ns = self._beats + 1, now_ns
        if self._beats % BEATS_PER_TICK == 0:
            self._watch.cancel_overdue(self._flying.values(), self._pool)
            self._on_tick(self)
        self._next_beat = self._loop.call_later(BEAT_S, self._beat)

    def _plan(self, due_ns: int, place: int) -> None:
        if self._stop_ns is None or due_ns < self._stop_ns:
            heapq.heappush(self._due, _Due(due_ns, place, due_ns, attempt=0))

    def _release_due(self) -> None:
        """Dispatch all that is due and ask to be woken for the next, early enough to make it ready."""
        while self._due:
            wake_ns = self._due[0].release_ns - LEAD_NS
            if wake_ns > time.monotonic_ns():
                self._timer.wake_at(wake_ns)
                return
            due = heapq.heappop(self._due)
            pieces = self._requests[due.place].payload
            exchange = Exchange(
                [b"".join(pieces)],
                index=due.place,
                attempt=due.attempt,
                due_ns=due.due_ns,
                done=self._exchange_ended,
            )
            exchange.dispatched_ns = _wait_until(due.release_ns)
            self.max_lag_ns = max(self.max_lag_ns, exchange.dispatched_ns - due.release_ns)
            if len(self._flying) < self._max_inflight:
                self._send(exchange)
            else:
                self._waiting.append(exchange)
            exchange.payload = pieces  # which requests share; thousands in flight would fill the memory

    def _send(self, exchange: Exchange) -> None:
        self.sent += 1
        self._flying[exchange.index] = exchange
        self._pool.submit(exchange)

    def _exchange_ended(self, exchange: Exchange) -> None:
        self._flying.pop(exchange.index, None)
        delay_ns = retry_delay_ns(exchange) if exchange.attempt < self._retries else None
        if delay_ns is not None and not self.interrupted:
            exchange.retried = True
            release_ns = exchange.end_ns + delay_ns
            heapq.heappush(self._due, _Due(release_ns, exchange.index, exchange.due_ns, exchange.attempt + 1))
        else:
            for place in self._followers.get(exchange.index, ()):
                self._plan(exchange.end_ns + self._requests[place].scheduled.intended_ns, place)
        while self._waiting and len(self._flying) < self._max_inflight:
            self._send(self._waiting.popleft())
        self._ended.append(exchange)
        if len(self._ended) == 1:
            self._loop.call_soon(self._measure_one)
        self._release_due()

    def _measure_one(self) -> None:
        """Measure one request a turn of the loop, so that reading long streams delays no send for long."""
        exchange = self._ended.popleft()
        request = self._requests[exchange.index]
        result = measure(request.scheduled, request.request_id, exchange, self._start_ns)
        if not result.retried:
            self.finished += 1
            self.failed += not result.ok
        self._on_result(result)
        if self._ended:
            self._loop.call_soon(self._measure_one)
        self._check_done()

    def _check_done(self) -> None:
        if not (self._due or self._flying or self._waiting or self._ended):
            self._all_done.set()


def _wait_until(when_ns: int) -> int:
    """For as short a time as no timer keeps. Returns the time of the monotonic clock."""
    while (now_ns := time.monotonic_ns()) < when_ns:
        pass
    return now_ns


def _followers(requests: Sequence[PreparedRequest]) -> dict[int, list[int]]:
    """{place: places of the requests that become due when it ends}"""
    places = {request.scheduled.index: place for place, request in enumerate(requests)}
    followers: dict[int, list[int]] = {}
    for place, request in enumerate(requests):
        if request.scheduled.follows and request.scheduled.previous is not None:
            followers.setdefault(places[request.scheduled.previous.index], []).append(place)
    return followers


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
