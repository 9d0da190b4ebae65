"""What the live page shows: the engine as it is now, and how it was in each second of the last minutes.

All of it comes from gauges and counters that are kept anyway. One timer of the event loop takes a sample of
them each second; the engine thread does nothing for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from engine.block_manager import BlockState
from engine.handle import EngineHandle
from engine.record import RequestRecord
from engine.record.counters import NS_PER_SECOND, finish_reason
from engine.record.histogram import Histogram, quantile

SAMPLE_INTERVAL_S = 1.0
WINDOW_S = 300
MAX_CELLS = 1024
"""Of the block map: a larger pool is shown with several blocks to a cell."""
NUM_REQUESTS = 20
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters and gauges at one moment."""

    taken_ns: int
    prompt_tokens: int
    generation_tokens: int
    num_running: int
    num_waiting: int
    kv_usage: float
    time_to_first_token: list[int]  # counts per bucket, as the next
    inter_token_latency: list[int]


class LiveHistory:
    """One sample for each of the last `WINDOW_S` seconds, taken on the event loop and read by any thread."""

    def __init__(self, engine: EngineHandle) -> None:
        self._engine = engine
        self._samples: deque[Sample] = deque(maxlen=round(WINDOW_S / SAMPLE_INTERVAL_S) + 1)

    async def keep(self) -> None:
        """Sample until cancelled."""
        while True:
            self.sample()
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    def sample(self) -> None:
        self._samples.append(self._now())

    def snapshot(self) -> dict[str, Any]:
        """The live page's data; durations are seconds.

        Takes a few milliseconds for a large pool: not for the event loop.
        """
        now = self._now()
        samples = [*self._samples.copy(), now]
        engine = self._engine
        return {
            "health": engine.health().reason,
            "running": now.num_running,
            "waiting": now.num_waiting,
            "max_num_seqs": engine.engine_config.max_num_seqs,
            "window_s": WINDOW_S,
            "latency": {
                "time_to_first_token": _percentiles(
                    engine.counters.time_to_first_token,
                    samples[0].time_to_first_token,
                    now.time_to_first_token,
                ),
                "inter_token": _percentiles(
                    engine.counters.inter_token_latency,
                    samples[0].inter_token_latency,
                    now.inter_token_latency,
                ),
            },
            "history": _history(samples[:-1], now.taken_ns),
            "blocks": _block_map(engine.block_states()),
            "requests": [
                _request_row(record, now.taken_ns) for record in engine.recent_requests.newest(NUM_REQUESTS)
            ],
        }

    def _now(self) -> Sample:
        stats, counters = self._engine.stats(), self._engine.counters
        return Sample(
            taken_ns=time.monotonic_ns(),
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            kv_usage=stats.kv_usage,
            time_to_first_token=list(counters.time_to_first_token.counts),
            inter_token_latency=list(counters.inter_token_latency.counts),
        )


def _percentiles(histogram: Histogram, before: Sequence[int], now: Sequence[int]) -> dict[str, float | None]:
    """Of what was counted between two samples; None where that is nothing."""
    counts = [new - old for new, old in zip(now, before, strict=True)]
    return {
        "count": sum(counts),
        **{f"p{percent}": quantile(histogram.bounds, counts, percent / 100) for percent in PERCENTILES},
    }


def _history(samples: Sequence[Sample], now_ns: int) -> dict[str, list[float]]:
    """Columns with an entry for each second, the oldest first."""
    columns: dict[str, list[float]] = {
        name: [] for name in ("age_s", "generated_per_s", "prompt_per_s", "running", "waiting", "kv_usage")
    }
    for before, sample in pairwise(samples):
        seconds = (sample.taken_ns - before.taken_ns) / NS_PER_SECOND
        generated = sample.generation_tokens - before.generation_tokens
        columns["age_s"].append(round((now_ns - sample.taken_ns) / NS_PER_SECOND, 2))
        columns["generated_per_s"].append(round(generated / seconds, 1))
        columns["prompt_per_s"].append(round((sample.prompt_tokens - before.prompt_tokens) / seconds, 1))
        columns["running"].append(sample.num_running)
        columns["waiting"].append(sample.num_waiting)
        columns["kv_usage"].append(round(sample.kv_usage, 4))
    return columns


def _block_map(states: np.ndarray) -> dict[str, Any]:
    """`used` and `cached` count the blocks of each cell, a cell being `per_cell` neighbours."""
    num_blocks = len(states)
    per_cell = -(-num_blocks // MAX_CELLS)
    starts = np.arange(0, num_blocks, per_cell)
    used, cached = states == BlockState.USED, states == BlockState.CACHED
    return {
        "total": num_blocks,
        "num_used": int(used.sum()),
        "num_cached": int(cached.sum()),
        "per_cell": per_cell,
        "used": np.add.reduceat(used, starts, dtype=np.int32).tolist(),
        "cached": np.add.reduceat(cached, starts, dtype=np.int32).tolist(),
    }


def _request_row(record: RequestRecord, now_ns: int) -> dict[str, Any]:
    end_ns = record.finished_ns or now_ns
    return {
        "request_id": record.request_id,
        "state": _state(record),
        "age_s": (now_ns - record.arrived_ns) / NS_PER_SECOND,
        "duration_s": (end_ns - record.arrived_ns) / NS_PER_SECOND,
        "time_to_first_token_s": (record.first_token_ns - record.arrived_ns) / NS_PER_SECOND
        if record.first_token_ns
        else None,
        "num_prompt_tokens": record.num_prompt_tokens,
        "num_cached_tokens": record.num_cached_tokens,
        "num_generated_tokens": record.num_generated_tokens,
        "num_preemptions": record.num_preemptions,
    }


def _state(record: RequestRecord) -> str:
    """waiting, prefill, decode, or why it ended: stop, length, abort or error."""
    if record.finished_ns:
        return finish_reason(record)
    if record.first_token_ns:
        return "decode"
    return "prefill" if record.first_scheduled_ns else "waiting"
