"""A histogram that the engine thread owns: plain counts, read by whoever scrapes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

# A decode step on a fast GPU takes 1 to 2 ms, so the small end is finer than the field's usual buckets.
TOKEN_SECONDS = (
    *(0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05),
    *(0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0),
)
REQUEST_SECONDS = (
    *(
        0.001,
        0.0025,
        0.005,
        0.01,
        0.02,
        0.03,
        0.05,
        0.075,
        0.1,
        0.15,
        0.2,
        0.3,
        0.5,
        0.75,
        1.0,
        1.5,
        2.0,
        3.0,
    ),
    *(5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
TOKEN_COUNTS = tuple(float(2**i) for i in range(18))  # 1 .. 131072
SEQUENCE_COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


def quantile(bounds: Sequence[float], counts: Sequence[int], q: float) -> float | None:
    """The q-quantile (0..1) of what was counted, None if that is nothing.

    `counts` has a last entry for what is above all bounds. Values are taken to be spread evenly within a
    bucket, and to be at the last bound above it, as Prometheus' `histogram_quantile` does.
    """
    rank = q * sum(counts)
    below = 0
    for i, count in enumerate(counts):
        if count and below + count >= rank:
            if i == len(bounds):
                return bounds[-1]
            lower = bounds[i - 1] if i else 0.0
            return lower + (bounds[i] - lower) * (rank - below) / count
        below += count
    return None


class Histogram:
    """Counts per bucket: bucket i holds bounds[i-1] < value <= bounds[i], the last one all that is above."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are ascending upper limits; a bucket without limit is added."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0
        self._edges = np.asarray(self.bounds, dtype=np.float64)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_many(self, values: np.ndarray) -> None:
        """Fold in an array of any numeric dtype; a few microseconds, however long it is."""
        if len(values) == 0:
            return
        buckets = np.searchsorted(self._edges, values, side="left")
        added = np.bincount(buckets, minlength=len(self.counts)).tolist()
        self.counts = [count + more for count, more in zip(self.counts, added, strict=True)]
        self.sum += float(values.sum())

    @property
    def count(self) -> int:
        return sum(self.counts)
