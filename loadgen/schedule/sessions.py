"""A load of sessions: they arrive openly; later turns come when the trace says, or after a pause."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from loadgen.schedule.options import ScheduleOptions
from loadgen.schedule.request import NS_PER_S, Schedule, ScheduledRequest
from loadgen.schedule.row_lengths import cap_lengths, scale_lengths
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

    With a turn that is dropped for a cap the rest of its session is. Raises TraceError if nothing is left, if
    the trace has no arrivals of sessions and no rate is given, or for options that do not fit sessions.
    """
    if options.dejitter or options.laps > 1:
        raise TraceError(f"{trace.path}: --dejitter and --laps are not for traces of sessions")
    schedule = Schedule([])
    rng = np.random.default_rng(np.random.SeedSequence(options.seed))
    for session in _chosen_sessions(trace, options, schedule, rng):
        if options.limit is not None and len(schedule.requests) + len(session.turns) > options.limit:
            schedule.dropped["over_limit"] += len(session.turns)
            continue
        _add_turns(session, trace, options, schedule)
    if not schedule.requests:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in schedule.dropped.items())
        raise TraceError(f"{trace.path}: the window and caps leave no session to send ({reasons})")
    return schedule


def _chosen_sessions(
    trace: Trace, options: ScheduleOptions, schedule: Schedule, rng: np.random.Generator
) -> list[_Session]:
    by_name: dict[str, Turns] = {}
    for place, row in enumerate(trace.rows):
        by_name.setdefault(row.session or "", []).append((place, row))
    sessions = [sorted(turns, key=lambda turn: turn[1].turn) for turns in by_name.values()]
    arrivals_ns = _arrivals_ns(trace, sessions, options, rng)
    start_ns = round(options.start_s * NS_PER_S)
    last_ns = max(arrivals_ns)
    end_ns = last_ns + 1 if options.duration_s is None else start_ns + round(options.duration_s * NS_PER_S)
    window_ns = max(1, end_ns - start_ns)
    # Copies are the window rotated by a random time, so that no two sessions come at the same moment.
    shifts_ns = [0, *rng.integers(window_ns, size=math.ceil(options.rate_scale)).tolist()]
    chosen: list[_Session] = []
    for turns, arrival_ns in zip(sessions, arrivals_ns, strict=True):
        if not start_ns <= arrival_ns < end_ns:
            schedule.dropped["outside_window"] += len(turns)
            continue
        copies = int(options.rate_scale) + (rng.random() < options.rate_scale % 1)
        if not copies:
            schedule.dropped["thinned"] += len(turns)
        for copy in range(copies):
            name = turns[0][1].session or ""
            due_ns = (arrival_ns - start_ns + shifts_ns[copy]) % window_ns
            copy_name = name if copy == 0 else f"{name}+{copy}"
            chosen.append(_Session(copy_name, round(due_ns * options.time_scale), turns, copy))
    return sorted(chosen, key=lambda session: session.arrival_ns)


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


def _add_turns(session: _Session, trace: Trace, options: ScheduleOptions, schedule: Schedule) -> None:
    previous: ScheduledRequest | None = None
    first_ns = session.turns[0][1].arrival_ns
    for done, (place, recorded) in enumerate(session.turns):
        history = previous.input_tokens + previous.output_tokens if previous else 0
        row = cap_lengths(scale_lengths(recorded, trace, options), trace, options, schedule, history)
        if row is None:
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
