"""What is printed and kept of checks and timings."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.kernels.small_batch.timing import capture, replay_us

TERABYTES_PER_S = 4.6  # what an H200's memory gives at best


class Report:
    """Prints each check and each time; what begins after `seconds` is skipped."""

    def __init__(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        self.failures = 0
        self.timings: list[dict[str, Any]] = []

    def attempt(self, name: str, part: Callable[[], object]) -> None:
        """One part that fails or does not compile must not end the run."""
        if time.monotonic() > self.deadline:
            print(f"SKIP {name}: out of time")
            return
        try:
            part()
        except Exception:
            self.failures += 1
            print(f"FAIL {name}: {traceback.format_exc(limit=-2)}")

    def check(self, name: str, actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-2) -> None:
        expected = expected.float()
        error = ((actual.float() - expected).norm() / expected.norm().clamp(min=1e-20)).item()
        self.verdict(name, error < tolerance, f"relative error {error:.1e}")

    def verdict(self, name: str, is_good: bool, detail: str) -> None:
        self.failures += not is_good
        print(f"{'ok  ' if is_good else 'FAIL'} {name}: {detail}")

    def timed(self, name: str, launches: list[Callable[[], object]], num_bytes: int, **tile: Any) -> float:
        def all_of_them() -> None:
            for launch in launches:
                launch()

        us = replay_us(capture(all_of_them), readings=5, least_ms=2.0) / len(launches)
        floor = num_bytes / TERABYTES_PER_S / 1e6
        print(f"     {name:46s} {us:9.2f} us, bytes alone {floor:8.2f}  {tile or ''}", flush=True)
        self.timings.append({"name": name, "us": us, "floor_us": floor, "tile": tile})
        return us


def best_tiles(timings: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The fastest tile of each swept name, beside the default's time."""
    best: dict[str, dict[str, Any]] = {}
    for entry in timings:
        name = entry["name"]
        swept = best.setdefault(name, {"us": float("inf"), "tile": {}, "default_us": None})
        if not entry["tile"]:
            swept["default_us"] = entry["us"]
        if entry["us"] < swept["us"]:
            swept.update(us=entry["us"], tile=entry["tile"])
    return {name: swept for name, swept in best.items() if not name.startswith("  ")}
