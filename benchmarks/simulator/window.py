"""A number of rows of a trace, played so fast that they come at a wanted rate."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from loadgen.traces import read_trace


@dataclass(frozen=True, slots=True)
class Window:
    rate: float  # requests per second
    seconds: float
    flags: list[str]  # of `octavo replay`


def squeezed(trace_path: str, rate: float, seconds: float) -> Window:
    """The first rows of the trace, as many as come in `seconds`; all again if they are too few."""
    trace = read_trace(trace_path, start_s=0.0, duration_s=None, seed=0)
    stamps_s = [row.arrival_ns / 1e9 for row in trace.rows]
    lap_s = stamps_s[-1]
    count = max(round(rate * seconds), 2)
    laps = ceil(count / len(stamps_s))
    span_s = (laps - 1) * lap_s + stamps_s[(count - 1) % len(stamps_s)]
    time_scale = (count - 1) / rate / span_s
    flags = ["--limit", str(count), "--laps", str(laps), "--time-scale", f"{time_scale:.6g}"]
    return Window(rate, count / rate, flags)
