"""Gives up requests that take too long."""

from __future__ import annotations

import time
from collections.abc import Collection

from loadgen.client import ConnectionPool, Exchange
from loadgen.client.stream import read_stream
from loadgen.run.options import Patience
from loadgen.schedule import NS_PER_S


class Watch:
    """Looks through the requests in flight now and then, so a limit is kept to about a tenth of a second."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._stop_early = patience.ttft_s is None and patience.stall_s is None

    def cancel_overdue(self, flying: Collection[Exchange], pool: ConnectionPool) -> None:
        """`flying` in order of submission."""
        now_ns = time.monotonic_ns()
        for exchange in list(flying):
            failure, limit_s = self._broken_limit(exchange, now_ns)
            if failure is not None:
                pool.cancel(exchange, failure, f"given up after {limit_s:g} s")
            elif self._stop_early:  # the later ones have waited for less
                return

    def _broken_limit(self, exchange: Exchange, now_ns: int) -> tuple[str | None, float]:
        """(kind of failure, its limit), the kind None if none is broken."""
        limits = self._patience
        waited_s = (now_ns - exchange.submitted_ns) / NS_PER_S
        if waited_s > limits.total_s:
            return "timeout", limits.total_s
        if limits.ttft_s is not None and waited_s > limits.ttft_s and not _has_token(exchange):
            return "ttft_timeout", limits.ttft_s
        times_ns = exchange.response.part_times_ns
        if limits.stall_s is not None and times_ns and now_ns - times_ns[-1] > limits.stall_s * NS_PER_S:
            return "stall_timeout", limits.stall_s
        return None, 0.0


def _has_token(exchange: Exchange) -> bool:
    if not exchange.has_token:
        response = exchange.response
        exchange.has_token = bool(read_stream(response.parts, response.part_times_ns).times_ns)
    return exchange.has_token
