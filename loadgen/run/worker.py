"""The work of one process: its share of the schedule, from preparation to the last result."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from loadgen.client import ConnectionPool
from loadgen.record.result import RequestResult
from loadgen.record.writer import RunWriter
from loadgen.run.counters import Counters
from loadgen.run.options import RunOptions
from loadgen.run.patience import Watch
from loadgen.run.replay import Replay
from loadgen.run.requests import RequestFactory
from loadgen.run.scrape import scraping
from loadgen.schedule import ScheduledRequest

SPARE_CONNECTIONS = 32  # kept open ahead of need, so that requests of a burst need not wait for one

T = TypeVar("T")
Barrier = Callable[[], int]
"""Waits until every worker is ready; returns time 0 of the run on the monotonic clock, in ns."""


@dataclass(frozen=True, slots=True)
class Job:
    """A load with all that is needed to send it."""

    requests: Sequence[ScheduledRequest]
    factory: RequestFactory
    options: RunOptions
    directory: Path
    counters: Counters


def share_of(requests: Sequence[ScheduledRequest], worker: int, workers: int) -> list[ScheduledRequest]:
    """Every `workers`-th request; one that follows another goes where that one goes."""
    owners: dict[int, int] = {}
    roots = 0
    for request in requests:
        if request.previous is not None:
            owners[request.index] = owners[request.previous.index]
        else:
            owners[request.index] = roots % workers
            roots += 1
    return [request for request in requests if owners[request.index] == worker]


async def work(job: Job, worker: int, barrier: Barrier, on_tick: Callable[[], None]) -> None:
    """Send a worker's share of the job and write its files. Bytes and connections are ready before time 0."""
    options = job.options
    prepared = [job.factory.prepare(r) for r in share_of(job.requests, worker, options.workers)]
    pool = ConnectionPool(
        job.factory.server, min(SPARE_CONNECTIONS, options.max_inflight or SPARE_CONNECTIONS)
    )
    await pool.open_spares()
    writer = RunWriter(job.directory, worker)

    def keep(result: RequestResult) -> None:
        result.worker = worker
        writer.add(result)
        job.counters.add(worker, result)

    def tick(replay: Replay) -> None:
        writer.flush()
        _publish(job.counters, worker, replay)
        on_tick()

    replay = Replay(
        pool,
        prepared,
        watch=Watch(options.patience),
        max_inflight=options.max_inflight and -(-options.max_inflight // options.workers),
        retries=options.retries,
        stop_after_s=options.stop_after_s,
        on_result=keep,
        on_tick=tick,
    )
    start_ns = barrier()
    cpu_s, wall_s = time.process_time(), time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        if options.scrape_metrics and worker == 0:
            await stack.enter_async_context(scraping(pool, job.factory.server, job.directory, start_ns))
        await replay.run(start_ns)
    writer.end(
        {
            "cpu_s": time.process_time() - cpu_s,
            "wall_s": time.monotonic() - wall_s,
            "interrupted": replay.interrupted,
            "max_stall_ns": replay.max_stall_ns,
        }
    )
    await pool.close()


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """On uvloop where it is installed: about half of asyncio's CPU time per chunk."""
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        from uvloop import new_event_loop as loop_factory
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main)


def _publish(counters: Counters, worker: int, replay: Replay) -> None:
    counters.set(
        worker,
        sent=replay.sent,
        finished=replay.finished,
        failed=replay.failed,
        in_flight=replay.in_flight,
        waiting=replay.waiting,
        max_lag_us=replay.max_lag_ns // 1000,
    )
