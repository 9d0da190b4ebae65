"""Finds the highest rate that is good enough, in few probes: doubles until one fails, then halves the gap."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Probe:
    """One run at a rate, in requests per second."""

    rate: float
    attainment: float
    attainment_95: list[float]
    good_tokens_per_s: float | None = None
    good_requests_per_s: float | None = None
    ttft_p50_ms: float | None = None  # from due time
    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None

    def to_row(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Bracket:
    """A search over rates, not over concurrency: only an open loop shows how long requests wait."""

    first_rate: float
    target: float
    precision: float  # the search ends when the gap between good and too much is within this share
    probes: list[Probe] = field(default_factory=list)

    def add(self, probe: Probe) -> None:
        self.probes.append(probe)

    @property
    def best(self) -> Probe | None:
        """The highest rate that was good, below every rate that was not."""
        failed = self.lowest_failed
        good = [p for p in self.probes if self._good(p) and (failed is None or p.rate < failed.rate)]
        return max(good, key=lambda probe: probe.rate, default=None)

    @property
    def lowest_failed(self) -> Probe | None:
        return min((p for p in self.probes if not self._good(p)), key=lambda probe: probe.rate, default=None)

    def next_rate(self) -> float | None:
        """None once the limit is known to the wanted precision."""
        best, failed = self.best, self.lowest_failed
        if not self.probes:
            return self.first_rate
        if failed is None and best is not None:
            return best.rate * 2
        if failed is not None and best is None:
            return failed.rate / 2
        assert best is not None and failed is not None
        if failed.rate / best.rate <= 1 + self.precision:
            return None
        return math.sqrt(best.rate * failed.rate)

    def _good(self, probe: Probe) -> bool:
        return probe.attainment >= self.target
