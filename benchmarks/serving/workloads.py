"""The serving workloads W1 to W6, and their requests: random token ids, the same for every server."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

TOKEN_IDS = range(1000, 100_000)


@dataclass(frozen=True, slots=True)
class Workload:
    """`rate` in requests per second: Poisson arrivals. Without: `streams` at a time, 0 for all at once."""

    name: str
    num_requests: int
    input_len: tuple[int, int]  # uniform, both included
    output_len: tuple[int, int]
    streams: int = 0
    rate: float = 0.0
    temperature: float = 0.0
    seed: int = 0

    def bodies(self) -> list[dict[str, Any]]:
        rng = random.Random(f"{self.name} {self.seed}")
        return [
            {
                "prompt": rng.choices(TOKEN_IDS, k=rng.randint(*self.input_len)),
                "max_tokens": rng.randint(*self.output_len),
                "temperature": self.temperature,
                "ignore_eos": True,
                "stream_options": {"include_usage": True},
            }
            for _ in range(self.num_requests)
        ]

    def arrivals_s(self) -> list[float]:
        """When each request is due, from the start of the run."""
        rng = random.Random(f"{self.name} arrivals {self.seed}")
        due = 0.0
        times = []
        for _ in range(self.num_requests):
            times.append(due)
            due += rng.expovariate(self.rate) if self.rate else 0.0
        return times


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("warm", 24, (200, 200), (64, 64), seed=901),
        Workload("W1", 8, (128, 128), (256, 256), streams=1, seed=1),
        Workload("W1s", 3, (128, 128), (256, 256), streams=1, seed=11),  # for models that take long
        Workload("W2", 256, (100, 1024), (100, 1024), temperature=0.6, seed=2),
        Workload("W2g", 256, (100, 1024), (100, 1024), seed=22),
        *(
            Workload(f"W3-{rate}", 30 * rate, (1024, 1024), (256, 256), rate=rate, seed=300 + rate)
            for rate in (4, 8, 16, 24, 32, 48)
        ),
        Workload("W4", 512, (1024, 1024), (256, 256), seed=4),
        Workload("W4h", 256, (1024, 1024), (256, 256), seed=44),
        Workload("W6", 3, (32_000, 32_000), (16, 16), streams=1, seed=6),
    )
}
