"""What the server says of itself: /metrics, read once a second onto the time axis of the run."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from functools import lru_cache
from pathlib import Path

import orjson

from loadgen.client import ConnectionPool, Server
from loadgen.record import files

INTERVAL_S = 1.0
TIMEOUT_S = 2.0
LAST_TIMEOUT_S = 10.0  # the growth of all counters hangs on it

# Our name -> how the names end that vLLM, Octavo and others give it. Values of several labels are summed.
NAMES = {
    "running": "num_requests_running",
    "waiting": "num_requests_waiting",
    "kv_usage": "(?:gpu_|kv_)cache_usage_perc",
    "preemptions": "num_preemptions(?:_total)?",
    "prefix_hits": "prefix_cache_hits(?:_total)?",
    "prefix_queries": "prefix_cache_queries(?:_total)?",
    "prompt_tokens": "prompt_tokens_total",
    "generation_tokens": "generation_tokens_total",
    "ttft_sum_s": "time_to_first_token_seconds_sum",
    "ttft_count": "time_to_first_token_seconds_count",
}
PATTERNS = {name: re.compile(rb"(?:[\w:]+[:_])?" + ending.encode()) for name, ending in NAMES.items()}
SAMPLE = re.compile(rb"([\w:]+)(?:\{.*\})? ([-+0-9.eE]+)")


def read_metrics(body: bytes) -> dict[str, float]:
    """The figures of a Prometheus text that we know.

    In a fraction of a millisecond for some hundred lines, since requests that are due wait for it.
    """
    figures: dict[str, float] = {}
    for line in body.split(b"\n"):
        name = _our_name(line.partition(b"{")[0].partition(b" ")[0])
        if name is not None and (sample := SAMPLE.match(line)):
            figures[name] = figures.get(name, 0.0) + float(sample[2])
    return figures


@lru_cache(maxsize=4096)
def _our_name(theirs: bytes) -> str | None:
    return next((name for name, pattern in PATTERNS.items() if pattern.fullmatch(theirs)), None)


@contextlib.asynccontextmanager
async def scraping(
    pool: ConnectionPool, server: Server, directory: Path, start_ns: int
) -> AsyncIterator[None]:
    """Scrape into the run's `server.jsonl` until left, and once more then.

    Ends quietly if the first scrape fails: the server has no /metrics. A later one that fails is a busy
    server's, and left out.
    """
    left = asyncio.Event()
    task = asyncio.create_task(_scrape(pool, server, directory / files.SERVER, start_ns, left))
    try:
        yield
    finally:
        left.set()  # not cancelled: `asyncio.wait_for` of Python 3.11 may swallow that
        await task


async def _scrape(
    pool: ConnectionPool, server: Server, path: Path, start_ns: int, left: asyncio.Event
) -> None:
    payload = server.request("GET", "/metrics")
    scrapes = 0
    with open(path, "wb", buffering=0) as file:
        last = False
        while not last:
            last = left.is_set()
            exchange = await pool.fetch(payload, LAST_TIMEOUT_S if last else TIMEOUT_S)
            complete = exchange.response.status == 200 and not exchange.failure
            figures = read_metrics(exchange.body()) if complete else {}
            if figures:
                file.write(orjson.dumps({"t_ns": exchange.end_ns - start_ns, **figures}) + b"\n")
            elif scrapes == 0:
                return
            # Between the whole seconds, at which traces with rounded stamps have their bursts.
            next_s = (scrapes + 0.5) * INTERVAL_S
            scrapes += 1
            pause_s = (start_ns - time.monotonic_ns()) / 1e9 + next_s
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(left.wait(), max(0.0, pause_s))
