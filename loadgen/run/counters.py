"""Counters of the workers in shared memory, from which the live view draws without disturbing them."""

from __future__ import annotations

import math
import mmap

import numpy as np

from loadgen.record.result import RequestResult

NAMES = ("sent", "finished", "failed", "in_flight", "waiting", "output_tokens", "max_lag_us")
TTFT_BINS = 128
BINS_PER_OCTAVE = 5  # of microseconds: neighbouring bins differ by 15 %, the last is at 50 s


class Counters:
    """One row for each worker, written by it alone. Make it before the workers are forked."""

    def __init__(self, workers: int) -> None:
        shape = (workers, len(NAMES) + TTFT_BINS)
        shared = mmap.mmap(-1, 8 * shape[0] * shape[1])
        self._rows = np.frombuffer(shared, np.int64).reshape(shape)

    def set(self, worker: int, **values: int) -> None:
        for name, value in values.items():
            self._rows[worker, NAMES.index(name)] = value

    def add(self, worker: int, result: RequestResult) -> None:
        """Count what a result says of tokens and of the time to the first one."""
        row = self._rows[worker]
        row[NAMES.index("output_tokens")] += result.output_tokens
        ttft_ns = result.since_due(result.first_token_ns)
        if result.ok and ttft_ns is not None:
            octaves = math.log2(max(ttft_ns / 1000, 1))
            row[len(NAMES) + min(int(octaves * BINS_PER_OCTAVE), TTFT_BINS - 1)] += 1

    def total(self, name: str) -> int:
        return int(self._rows[:, NAMES.index(name)].sum())

    def largest(self, name: str) -> int:
        return int(self._rows[:, NAMES.index(name)].max())

    def ttft_ms(self, share: float) -> float | None:
        """A percentile of the time to the first token, to within 15 %; None before the first one."""
        counts = self._rows[:, len(NAMES) :].sum(axis=0).cumsum()
        if not counts[-1]:
            return None
        place = int(np.searchsorted(counts, share * counts[-1]))
        return float(2 ** ((place + 0.5) / BINS_PER_OCTAVE) / 1000)
