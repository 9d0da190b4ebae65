"""Sends a workload's requests when they are due, over the load generator's own connections."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson

from benchmarks.serving.workloads import Workload
from loadgen.client import ConnectionPool, Server
from loadgen.measure import RequestResult, measure
from loadgen.schedule import NS_PER_S, ScheduledRequest

PATH = "/v1/completions"
TIMEOUT_S = 300.0
LEAD_S = 0.2  # bodies and connections are ready before the first request is due


def run_workload(base_url: str, model: str, workload: Workload) -> list[RequestResult]:
    """One result for each request, in order; failures are in the results."""
    return asyncio.run(_Run(base_url, model, workload).all())


class _Run:
    def __init__(self, base_url: str, model: str, workload: Workload) -> None:
        self.server = Server.resolve(base_url)
        self.bodies = workload.bodies()
        self.payloads = [self._payload({"model": model, "stream": True, **body}) for body in self.bodies]
        self.arrivals_ns = [int(due * NS_PER_S) for due in workload.arrivals_s()]
        self.streams = asyncio.Semaphore(workload.streams or len(self.bodies))
        self.sequential = workload.streams > 0

    def _payload(self, body: dict[str, Any]) -> Any:
        return self.server.request("POST", PATH, [orjson.dumps(body)])

    async def all(self) -> list[RequestResult]:
        self.pool = ConnectionPool(self.server, spares=len(self.bodies))
        await self.pool.open_spares()
        self.start_ns = time.monotonic_ns() + int(LEAD_S * NS_PER_S)
        results = await asyncio.gather(*(self._one(i) for i in range(len(self.bodies))))
        await self.pool.close()
        return results

    async def _one(self, index: int) -> RequestResult:
        due_ns = self.arrivals_ns[index]
        delay_ns = self.start_ns + due_ns - time.monotonic_ns()
        await asyncio.sleep(max(delay_ns, 0) / NS_PER_S)
        async with self.streams:
            if self.sequential:  # due when the one before has ended
                due_ns = time.monotonic_ns() - self.start_ns
            exchange = await self.pool.fetch(self.payloads[index], TIMEOUT_S)
        body = self.bodies[index]
        asked = ScheduledRequest(index, due_ns, len(body["prompt"]), body["max_tokens"], index)
        return measure(asked, str(index), exchange, self.start_ns)
