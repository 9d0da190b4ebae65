"""Streamed completions over the load generator's own connections, every chunk timed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from loadgen.client import ConnectionPool, Server
from loadgen.client.measure import measure
from loadgen.record import RequestResult
from loadgen.schedule import ScheduledRequest

PATH = "/v1/completions"
TIMEOUT_S = 600.0


class CompletionStreams:
    """Some requests by number. Their bytes and connections are ready before the first one is sent."""

    def __init__(self, base_url: str, bodies: Mapping[int, dict[str, Any]]) -> None:
        server = Server.resolve(base_url)
        self._bodies = bodies
        self._payloads = {
            i: server.request("POST", PATH, [orjson.dumps({"stream": True, **body})])
            for i, body in bodies.items()
        }
        self._pool = ConnectionPool(server, spares=len(bodies))

    async def __aenter__(self) -> CompletionStreams:
        await self._pool.open_spares()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._pool.close()

    async def send(self, index: int, start_ns: int = 0, due_ns: int = 0) -> RequestResult:
        """Send one now and read its answer; a failure is in the result.

        `due_ns` is when it ought to be sent, from `start_ns`, the start of the run on the monotonic clock.
        """
        exchange = await self._pool.fetch(self._payloads[index], TIMEOUT_S)
        exchange.due_ns = start_ns + due_ns
        body = self._bodies[index]
        asked = ScheduledRequest(index, due_ns, len(body["prompt"]), body["max_tokens"], index)
        return measure(asked, str(index), exchange, start_ns)
