"""What a step log says of steps with decodes: how long the device was idle, and the host's work around them.

    python -m benchmarks.step_log STEP_LOG...

A row for each range of decodes. Idle is what lies between the ends of two such steps in a row and is not the
second one's time on the device; only ends that the host waited for are known. The host's work is planning,
launching and settling, of steps without prompts.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from engine.record import StepEntry
from engine.record.step_log import read_step_log


@dataclass(slots=True)
class Times:
    """Of steps of like size, nanoseconds."""

    host: list[int] = field(default_factory=list)  # of those without prompts
    device: list[int] = field(default_factory=list)
    between_ends: list[int] = field(default_factory=list)  # of steps that follow another one with decodes
    idle: list[int] = field(default_factory=list)  # of that


def times_by_size(entries: list[StepEntry]) -> dict[int, Times]:
    """By the largest power of two that is not above the number of decodes."""
    steps: dict[int, Times] = defaultdict(Times)
    for before, entry in pairwise(entries):
        num_decodes = entry.is_prefill.count(False)
        if not num_decodes or not entry.device_ns:
            continue
        times = steps[1 << (num_decodes.bit_length() - 1)]
        if not any(entry.is_prefill):
            times.host.append(entry.schedule_ns + entry.launch_ns + entry.commit_ns)
        times.device.append(entry.device_ns)
        if False in before.is_prefill and before.was_awaited and entry.was_awaited:
            period = entry.tokens_at_ns - before.tokens_at_ns
            times.between_ends.append(period)
            times.idle.append(max(0, period - entry.device_ns))
    return dict(sorted(steps.items()))


def table(steps: dict[int, Times]) -> str:
    lines = [
        "| decodes | steps | on the device, ms p50 / p90 | device idle | host, ms p50 / p90 |",
        "| --- | --- | --- | --- | --- |",
    ]
    for least, times in steps.items():
        sizes = "1" if least == 1 else f"{least} to {2 * least - 1}"
        idle = f"{100 * sum(times.idle) / sum(times.between_ends):.1f} %" if times.between_ends else ""
        cells = [str(len(times.device)), _percentiles_ms(times.device), idle, _percentiles_ms(times.host)]
        lines.append(f"| {sizes} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _percentiles_ms(times_ns: list[int]) -> str:
    return " / ".join(f"{x / 1e6:.2f}" for x in np.percentile(times_ns, [50, 90])) if times_ns else ""


if __name__ == "__main__":
    for log in map(Path, sys.argv[1:]):
        print(f"{log.name}\n\n{table(times_by_size(read_step_log(log)[1]))}\n")
