"""A load of sessions: they arrive openly; later turns come when the trace says, or after a pause."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadgen.schedule.options import ScheduleOptions, over_cap
from loadgen.schedule.request import NS_PER_S, Schedule, ScheduledRequest
from loadgen.traces.records import Trace, TraceError, TraceRow

Turns = list[tuple[int, TraceRow]]
"""(place in the trace, row) of each turn of a session, in order."""


@dataclass(frozen=True, slots=True)
class _Session:
    name: str
    arrival_ns: int
    turns: Turns
    copy: int


def build_session_schedule(trace: Trace, options: ScheduleOptions) -> Schedule:
    """Like `build_schedule`. Window, rate and limit choose sessions, of which whole ones are kept.

    A turn that is over a cap is dropped, and with it the rest of its session. Raises TraceError if nothing is
    left, or if the trace has no arrivals of sessions and no rate is given.
    """
    schedule = Schedule([])
    rng = np.random.default_rng(np.random.SeedSequence(options.seed))
    for session in _chosen_sessions(trace, options, schedule, rng):
        if options.limit is not None and len(schedule.requests) + len(session.turns) > options.limit:
            schedule.dropped["over_limit"] += len(session.turns)
            continue
        _add_turns(session, options, schedule)
    if not schedule.requests:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in schedule.dropped.items())
        raise TraceError(f"{trace.path}: the window and caps leave no session to send ({reasons})")
    return schedule


def _chosen_sessions(
    trace: Trace, options: ScheduleOptions, schedule: Schedule, rng: np.random.Generator
) -> Iterator[_Session]:
    by_name: dict[str, Turns] = {}
    for place, row in enumerate(trace.rows):
        by_name.setdefault(row.session or "", []).append((place, row))
    sessions = [sorted(turns, key=lambda turn: turn[1].turn) for turns in by_name.values()]
    arrivals_ns = _arrivals_ns(trace, sessions, options, rng)
    start_ns = round(options.start_s * NS_PER_S)
    end_ns = math.inf if options.duration_s is None else start_ns + options.duration_s * NS_PER_S
    for turns, arrival_ns in zip(sessions, arrivals_ns, strict=True):
        if not start_ns <= arrival_ns < end_ns:
            schedule.dropped["outside_window"] += len(turns)
            continue
        due_ns = round((arrival_ns - start_ns) * options.time_scale)
        copies = int(options.rate_scale) + (rng.random() < options.rate_scale % 1)
        if not copies:
            schedule.dropped["thinned"] += len(turns)
        for copy in range(copies):
            name = turns[0][1].session or ""
            yield _Session(name if copy == 0 else f"{name}+{copy}", due_ns, turns, copy)


def _arrivals_ns(
    trace: Trace, sessions: list[Turns], options: ScheduleOptions, rng: np.random.Generator
) -> list[int]:
    if options.session_rate is not None:
        gaps_s = rng.exponential(1 / options.session_rate, len(sessions))
        return [round(at_s * NS_PER_S) for at_s in gaps_s.cumsum()]
    recorded = [turns[0][1].arrival_ns for turns in sessions]
    if len(recorded) > 1 and not any(recorded):
        raise TraceError(f"{trace.path}: its sessions have no arrival times; give --session-rate")
    return recorded


def _add_turns(session: _Session, options: ScheduleOptions, schedule: Schedule) -> None:
    previous: ScheduledRequest | None = None
    first_ns = session.turns[0][1].arrival_ns
    for done, (place, row) in enumerate(session.turns):
        history = previous.input_tokens + previous.output_tokens if previous else 0
        reason = over_cap(history + row.input_tokens, row.output_tokens, options)
        if reason is not None:
            schedule.dropped[reason] += 1
            schedule.dropped["after_dropped_turn"] += len(session.turns) - done - 1
            schedule.dropped = +schedule.dropped
            return
        follows = previous is not None and row.delay_ns is not None
        recorded_ns = session.arrival_ns + round((row.arrival_ns - first_ns) * options.time_scale)
        previous = ScheduledRequest(
            index=len(schedule.requests),
            intended_ns=row.delay_ns if follows and row.delay_ns is not None else recorded_ns,
            input_tokens=history + row.input_tokens,
            output_tokens=row.output_tokens,
            trace_row=place,
            copy=session.copy,
            hash_ids=row.hash_ids,
            previous=previous,
            follows=follows,
            continues=previous is not None,
            session=session.name,
            turn=row.turn,
            request_class=row.request_class,
        )
        schedule.requests.append(previous)
