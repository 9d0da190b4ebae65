"""Requests and steps as Chrome trace JSON, which Perfetto and chrome://tracing open.

The format is Google's "Trace Event Format": complete events (ph X) with ts and dur in microseconds, counters
(C), instants (i), and metadata (M) that names processes and threads.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from engine.record.counters import finish_reason
from engine.record.request_record import RequestRecord
from engine.record.step_log import StepEntry

Event = dict[str, Any]

REQUESTS_PID = 1
ENGINE_PID = 2
HOST_TID = 1
DEVICE_TID = 2


def chrome_trace(records: Sequence[RequestRecord], steps: Sequence[StepEntry] = ()) -> dict[str, Any]:
    """A trace of finished or running requests, one lane for each that run side by side, and of engine steps.

    Time 0 is the first thing in it.
    """
    starts = [record.arrived_ns for record in records] + [step.scheduled_at_ns for step in steps]
    origin_ns = min(starts, default=0)
    events = [
        _name("process_name", REQUESTS_PID, 0, "requests"),
        _name("process_name", ENGINE_PID, 0, "engine"),
        _name("thread_name", ENGINE_PID, HOST_TID, "host"),
        _name("thread_name", ENGINE_PID, DEVICE_TID, "device"),
    ]
    for record, lane in _lanes(records):
        events.extend(_request_events(record, lane, origin_ns))
    for step in steps:
        events.extend(_step_events(step, origin_ns))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _lanes(records: Iterable[RequestRecord]) -> Iterator[tuple[RequestRecord, int]]:
    """Each record with the lowest lane (from 1) that is free when it arrives."""
    busy: list[tuple[int, int]] = []  # (end of the request in the lane, lane)
    free: list[int] = []
    for record in sorted(records, key=lambda record: record.arrived_ns):
        while busy and busy[0][0] <= record.arrived_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy) + 1
        heapq.heappush(busy, (_end_ns(record), lane))
        yield record, lane


def _end_ns(record: RequestRecord) -> int:
    """The last thing that is known of it; a running request has not finished."""
    last_tokens = [times[-1] for times in record.token_times_ns if times]
    known = (record.finished_ns, record.first_scheduled_ns, record.queued_ns, record.tokenized_ns)
    return record.finished_ns or max(record.arrived_ns, *known, *last_tokens)


def _request_events(record: RequestRecord, lane: int, origin_ns: int) -> Iterator[Event]:
    end_ns = _end_ns(record)
    details = {
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.num_cached_tokens,
        "generated_tokens": record.num_generated_tokens,
        "preemptions": record.num_preemptions,
        "finish_reason": finish_reason(record) if record.finished_ns else None,
    }
    request = (REQUESTS_PID, lane)
    yield _span(record.request_id, request, record.arrived_ns, end_ns, origin_ns, details)
    borders = (
        ("tokenize", record.arrived_ns),
        ("queue", record.queued_ns),
        ("prefill", record.first_scheduled_ns),
        ("decode", record.first_token_ns),
    )
    reached = [(name, start_ns) for name, start_ns in borders if start_ns]
    ends = [start_ns for _, start_ns in reached[1:]] + [end_ns]
    for (name, start_ns), phase_end_ns in zip(reached, ends, strict=True):
        yield _span(name, request, start_ns, phase_end_ns, origin_ns)
    for index, times_ns in enumerate(record.token_times_ns):
        for time_ns in times_ns:
            ts = (time_ns - origin_ns) / 1000
            yield {"name": f"token {index}", "ph": "i", "s": "t", "pid": REQUESTS_PID, "tid": lane, "ts": ts}


def _step_events(step: StepEntry, origin_ns: int) -> Iterator[Event]:
    host = (ENGINE_PID, HOST_TID)
    launch_at_ns = step.scheduled_at_ns + step.schedule_ns
    commit_at_ns = step.tokens_at_ns
    details = {"step": step.step, "sequences": len(step.sequence_ids), "tokens": step.num_scheduled}
    for name, start_ns, duration_ns in (
        ("schedule", step.scheduled_at_ns, step.schedule_ns),
        ("launch", launch_at_ns, step.launch_ns),
        ("collect", step.collected_at_ns, step.collect_ns),
        ("commit", commit_at_ns, step.commit_ns),
    ):
        yield _span(name, host, start_ns, start_ns + duration_ns, origin_ns, details)
    if step.device_ns:  # its tokens were on the host at the end of collect, and it ran just before
        device = (ENGINE_PID, DEVICE_TID)
        yield _span(
            f"step {step.step}", device, commit_at_ns - step.device_ns, commit_at_ns, origin_ns, details
        )
    gauges = {
        "sequences": {"running": step.num_running, "waiting": step.num_waiting},
        "blocks used": {"used": step.num_blocks_used},
        "tokens": {"prefill": _prefill_tokens(step), "decode": step.num_scheduled - _prefill_tokens(step)},
    }
    ts = (step.scheduled_at_ns - origin_ns) / 1000
    for name, values in gauges.items():
        yield {"name": name, "ph": "C", "pid": ENGINE_PID, "tid": 0, "ts": ts, "args": values}


def _prefill_tokens(step: StepEntry) -> int:
    rows = zip(step.num_scheduled_tokens, step.is_prefill, strict=True)
    return sum(tokens for tokens, is_prefill in rows if is_prefill)


def _span(
    name: str,
    where: tuple[int, int],
    start_ns: int,
    end_ns: int,
    origin_ns: int,
    details: dict[str, Any] | None = None,
) -> Event:
    pid, tid = where
    return {
        "name": name,
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": (start_ns - origin_ns) / 1000,
        "dur": (end_ns - start_ns) / 1000,
        "args": details or {},
    }


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}
