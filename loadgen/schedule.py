"""The whole load, made before the first request is sent: who is due when, in nanoseconds from the start."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from loadgen.traces.records import Trace, TraceError, TraceRow

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request of the load. Its prompt is known from `copy` and `hash_ids`, or `copy` and `trace_row`."""

    index: int
    intended_ns: int  # from the start of the run
    input_tokens: int
    output_tokens: int
    trace_row: int  # place in the ordered trace
    copy: int = 0  # 0 is the trace itself, 1 and up its superposed copies
    hash_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    time_scale: float = 1.0  # every arrival time is multiplied by it
    rate_scale: float = 1.0  # below 1 thins the trace, above 1 superposes shifted copies
    start_s: float = 0.0  # the window, in seconds of the trace
    duration_s: float | None = None
    limit: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_model_len: int | None = None
    cap_mode: Literal["drop", "clip"] = "drop"
    dejitter: bool = False
    seed: int = 0


@dataclass(slots=True)
class Schedule:
    """Requests in order of `intended_ns`, and what became of the trace rows that are not among them."""

    requests: list[ScheduledRequest]
    dropped: Counter[str] = field(default_factory=Counter)
    clipped: Counter[str] = field(default_factory=Counter)
    dejitter_ns: int | None = None  # width of the bins that equal stamps were spread over


@dataclass(frozen=True, slots=True)
class _Arrival:
    arrival_ns: int
    trace_row: int
    row: TraceRow
    copy: int = 0


def build_schedule(trace: Trace, options: ScheduleOptions) -> Schedule:
    """Turn a trace into a load. The same trace, options and seed always give the same schedule.

    Raises TraceError if nothing is left to send, or if `dejitter` is asked of a trace without equal stamps.
    """
    schedule = Schedule([])
    rng = np.random.default_rng(np.random.SeedSequence(options.seed))
    arrivals = [_Arrival(row.arrival_ns, place, row) for place, row in enumerate(trace.rows)]
    if options.dejitter:
        arrivals, schedule.dejitter_ns = _dejitter(arrivals, trace.path, rng)
    arrivals, window_ns = _window(arrivals, options, schedule)
    arrivals = _scale_rate(arrivals, options.rate_scale, window_ns, schedule, rng)
    for arrival in arrivals:
        if len(schedule.requests) == options.limit:
            schedule.dropped["over_limit"] += 1
            continue
        row = _cap(arrival.row, trace.block_size, options, schedule)
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


def _cap(
    row: TraceRow, block_size: int | None, options: ScheduleOptions, schedule: Schedule
) -> TraceRow | None:
    """Apply the length caps: None if the row is dropped, else the row, shortened where clipping is on."""
    reason = _over_cap(row, options)
    if reason is None:
        return row
    if options.cap_mode == "drop":
        schedule.dropped[reason] += 1
        return None
    schedule.clipped[reason] += 1
    room = options.max_model_len or math.inf
    output_tokens = int(min(row.output_tokens, options.max_output_tokens or math.inf, room - 1))
    input_tokens = int(min(row.input_tokens, options.max_input_tokens or math.inf, room - output_tokens))
    hash_ids = row.hash_ids
    if hash_ids is not None and block_size is not None:
        hash_ids = hash_ids[: math.ceil(input_tokens / block_size)]
    return TraceRow(row.arrival_ns, input_tokens, output_tokens, hash_ids)


def _over_cap(row: TraceRow, options: ScheduleOptions) -> str | None:
    if row.input_tokens > (options.max_input_tokens or math.inf):
        return "over_max_input_tokens"
    if row.output_tokens > (options.max_output_tokens or math.inf):
        return "over_max_output_tokens"
    if row.input_tokens + row.output_tokens > (options.max_model_len or math.inf):
        return "over_max_model_len"
    return None


def ideal_hit_rate(requests: list[ScheduledRequest], block_size: int | None) -> float | None:
    """Share of prompt tokens that a prefix cache of no limit would find: leading blocks seen in an earlier
    request. The last token of a prompt is always computed. None for a load without hash ids."""
    if block_size is None:
        return None
    seen: set[tuple[int, int]] = set()
    hits = 0
    for request in requests:
        blocks = [(request.copy, block_id) for block_id in request.hash_ids or ()]
        shared = next((place for place, block in enumerate(blocks) if block not in seen), len(blocks))
        hits += min(shared * block_size, request.input_tokens - 1)
        seen.update(blocks)
    return hits / sum(request.input_tokens for request in requests)
