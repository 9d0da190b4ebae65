"""Sends a workload's requests when they are due, over the load generator's own connections.

One Python process tops out near 20,000 streamed tokens per second, so several share a workload's requests.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection

from benchmarks.completion_streams import CompletionStreams
from benchmarks.serving.workloads import Workload
from loadgen.record import RequestResult
from loadgen.schedule import NS_PER_S

LEAD_S = 0.2  # bodies and connections are ready before the first request is due
NUM_PROCESSES = 4


def run_workload(base_url: str, model: str, workload: Workload) -> list[RequestResult]:
    """One result for each request, in order; failures are in the results."""
    num_processes = 1 if workload.streams else min(NUM_PROCESSES, workload.num_requests)
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(num_processes)]
    processes = [
        context.Process(target=_client, args=(theirs, base_url, model, workload, part, num_processes))
        for part, (_, theirs) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for ours, theirs in pipes:
        theirs.close()  # so that a client's death ends the wait for it
        ours.recv()  # ready
    start_ns = time.monotonic_ns() + int(LEAD_S * NS_PER_S)
    for ours, _ in pipes:
        ours.send(start_ns)
    results = [result for ours, _ in pipes for result in ours.recv()]
    for process in processes:
        process.join()
    return sorted(results, key=lambda result: result.index)


def _client(
    pipe: Connection, base_url: str, model: str, workload: Workload, part: int, num_parts: int
) -> None:
    pipe.send(asyncio.run(_Run(base_url, model, workload, part, num_parts).all(pipe)))


class _Run:
    """Every `num_parts`-th request of the workload, from number `part` on."""

    def __init__(self, base_url: str, model: str, workload: Workload, part: int, num_parts: int) -> None:
        bodies = workload.bodies()
        mine = range(part, len(bodies), num_parts)
        self.streams = CompletionStreams(base_url, {i: {"model": model, **bodies[i]} for i in mine})
        self.mine = mine
        self.arrivals_ns = [int(due * NS_PER_S) for due in workload.arrivals_s()]
        self.turns = asyncio.Semaphore(workload.streams or len(bodies))
        self.sequential = workload.streams > 0

    async def all(self, pipe: Connection) -> list[RequestResult]:
        """Tells `pipe` when it is ready, and takes the start of the run from it (monotonic ns)."""
        async with self.streams:
            pipe.send(None)
            self.start_ns = pipe.recv()
            return await asyncio.gather(*(self._one(i) for i in self.mine))

    async def _one(self, index: int) -> RequestResult:
        due_ns = self.arrivals_ns[index]
        delay_ns = self.start_ns + due_ns - time.monotonic_ns()
        await asyncio.sleep(max(delay_ns, 0) / NS_PER_S)
        async with self.turns:
            if self.sequential:  # due when the one before has ended
                due_ns = time.monotonic_ns() - self.start_ns
            return await self.streams.send(index, self.start_ns, due_ns)
