"""A load from a recorded trace: a window of it, at another speed or rate, within caps on lengths."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from loadgen.schedule.options import ScheduleOptions
from loadgen.schedule.request import NS_PER_S, Schedule, ScheduledRequest
from loadgen.schedule.row_lengths import cap_lengths, scale_lengths
from loadgen.schedule.sessions import build_session_schedule
from loadgen.traces.records import Trace, TraceError, TraceRow


@dataclass(frozen=True, slots=True)
class _Arrival:
    arrival_ns: int
    trace_row: int
    row: TraceRow
    copy: int = 0


def build_schedule(trace: Trace, options: ScheduleOptions) -> Schedule:
    """Turn a trace into a load. The same trace, options and seed always give the same schedule.

    Raises TraceError if nothing is left to send, or for options that do not fit the trace.
    """
    if trace.has_sessions:
        return build_session_schedule(trace, options)
    if options.session_rate is not None:
        raise TraceError(f"{trace.path}: --session-rate is for traces of sessions, and this one has none")
    schedule = Schedule([])
    rng = np.random.default_rng(np.random.SeedSequence(options.seed))
    arrivals = [_Arrival(row.arrival_ns, place, row) for place, row in enumerate(trace.rows)]
    if options.dejitter:
        arrivals, schedule.dejitter_ns = _dejitter(arrivals, trace.path, rng)
    arrivals, window_ns = _window(arrivals, options, schedule)
    arrivals = _scale_rate(arrivals, options.rate_scale, window_ns, schedule, rng)
    arrivals = _repeat(arrivals, options.laps, window_ns)
    for arrival in arrivals:
        if len(schedule.requests) == options.limit:
            schedule.dropped["over_limit"] += 1
            continue
        row = cap_lengths(scale_lengths(arrival.row, trace, options), trace, options, schedule)
        if row is None:
            continue
        schedule.requests.append(
            ScheduledRequest(
                index=len(schedule.requests),
                intended_ns=round(arrival.arrival_ns * options.time_scale),
                input_tokens=row.input_tokens,
                output_tokens=row.output_tokens,
                trace_row=arrival.trace_row,
                copy=arrival.copy,
                hash_ids=row.hash_ids,
                request_class=row.request_class,
            )
        )
    if not schedule.requests:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in schedule.dropped.items())
        raise TraceError(f"{trace.path}: the window and caps leave no request to send ({reasons})")
    return schedule


def _dejitter(arrivals: list[_Arrival], path: str, rng: np.random.Generator) -> tuple[list[_Arrival], int]:
    """Spread requests with equal stamps over the usual distance between stamps, keeping their order."""
    stamps, counts = np.unique([arrival.arrival_ns for arrival in arrivals], return_counts=True)
    if len(stamps) < 2 or 2 * len(stamps) > len(arrivals):
        raise TraceError(f"{path}: --dejitter is for traces with quantised stamps, and this one has none")
    gaps = np.diff(stamps)
    width = int(np.median(gaps))
    room = np.minimum(np.append(gaps, width), width)
    offsets = [np.sort(rng.random(count)) * bin_ns for count, bin_ns in zip(counts, room, strict=True)]
    moved = [
        replace(arrival, arrival_ns=arrival.arrival_ns + int(offset))
        for arrival, offset in zip(arrivals, np.concatenate(offsets), strict=True)
    ]
    return moved, width


def _window(
    arrivals: list[_Arrival], options: ScheduleOptions, schedule: Schedule
) -> tuple[list[_Arrival], int]:
    """Keep [start, start + duration) and count time from its start. Returns its length in ns as well."""
    start_ns = round(options.start_s * NS_PER_S)
    last_ns = arrivals[-1].arrival_ns if arrivals else 0
    end_ns = last_ns + 1 if options.duration_s is None else start_ns + round(options.duration_s * NS_PER_S)
    kept = [
        replace(arrival, arrival_ns=arrival.arrival_ns - start_ns)
        for arrival in arrivals
        if start_ns <= arrival.arrival_ns < end_ns
    ]
    if len(kept) < len(arrivals):
        schedule.dropped["outside_window"] += len(arrivals) - len(kept)
    return kept, end_ns - start_ns


def _scale_rate(
    arrivals: list[_Arrival],
    scale: float,
    window_ns: int,
    schedule: Schedule,
    rng: np.random.Generator,
) -> list[_Arrival]:
    """Thin (scale < 1) or superpose (scale > 1): both keep the shape of bursts, unlike a change of speed.

    A copy is the window rotated by a random time, so bursts of two copies do not fall together.
    """
    if scale == 1.0:
        return arrivals
    scaled: list[_Arrival] = []
    for copy in range(math.ceil(scale)):
        kept = arrivals
        share = min(1.0, scale - copy)
        if share < 1.0:
            kept = [a for a, draw in zip(arrivals, rng.random(len(arrivals)), strict=True) if draw < share]
        if copy == 0:
            schedule.dropped["thinned"] += len(arrivals) - len(kept)
            scaled += kept
            continue
        shift = int(rng.integers(window_ns))
        scaled += [replace(a, arrival_ns=(a.arrival_ns + shift) % window_ns, copy=copy) for a in kept]
    schedule.dropped = +schedule.dropped
    return sorted(scaled, key=lambda arrival: (arrival.arrival_ns, arrival.copy))


def _repeat(arrivals: list[_Arrival], laps: int, window_ns: int) -> list[_Arrival]:
    """The window, again and again. Later laps count as copies, so that their prompts are new to a cache."""
    copies = 1 + max((arrival.copy for arrival in arrivals), default=0)
    return [
        replace(a, arrival_ns=a.arrival_ns + lap * window_ns, copy=a.copy + lap * copies)
        for lap in range(laps)
        for a in arrivals
    ]
