"""The schedule: made whole, the same for the same seed, and nothing lost between trace and schedule."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.schedule import Schedule
from loadgen.schedule.cache import ideal_hit_rate
from loadgen.schedule.from_trace import build_schedule
from loadgen.schedule.options import ScheduleOptions
from loadgen.traces import Trace, TraceError, TraceRow, read_trace
from tests.support.examples import examples

SAMPLES = Path(__file__).parents[2] / "loadgen" / "traces" / "samples"
MS = 1_000_000
S = 1_000_000_000


def make_trace(rows: list[TraceRow], block_size: int | None = None) -> Trace:
    return Trace("test", "trace", rows, len(rows), block_size=block_size)


def arrivals(schedule: Schedule) -> list[int]:
    return [request.intended_ns for request in schedule.requests]


def test_window_and_time_scale_are_exact() -> None:
    trace = make_trace([TraceRow(at * S, 10, 5) for at in range(10)])
    schedule = build_schedule(trace, ScheduleOptions(start_s=2, duration_s=3, time_scale=0.5))
    assert arrivals(schedule) == [0, S // 2, S]  # the window is [2, 5)
    assert schedule.dropped == {"outside_window": 7}
    assert [request.trace_row for request in schedule.requests] == [2, 3, 4]


def test_caps_drop_and_are_counted() -> None:
    trace = make_trace([TraceRow(0, 10, 5), TraceRow(1, 99, 5), TraceRow(2, 10, 50), TraceRow(3, 40, 15)])
    options = ScheduleOptions(max_input_tokens=50, max_output_tokens=20, max_model_len=50)
    schedule = build_schedule(trace, options)
    assert len(schedule.requests) == 1
    assert schedule.dropped == {
        "over_max_input_tokens": 1,
        "over_max_output_tokens": 1,
        "over_max_model_len": 1,
    }


@examples(60)
@given(
    lengths=st.tuples(st.integers(1, 3000), st.integers(1, 300)),
    max_input=st.none() | st.integers(1, 2000),
    max_output=st.none() | st.integers(1, 200),
    max_model_len=st.none() | st.integers(2, 2000),
)
def test_clipping_keeps_every_request_within_all_caps(
    lengths: tuple[int, int], max_input: int | None, max_output: int | None, max_model_len: int | None
) -> None:
    row = TraceRow(0, *lengths, hash_ids=tuple(range(-(-lengths[0] // 512))))
    options = ScheduleOptions(
        max_input_tokens=max_input, max_output_tokens=max_output, max_model_len=max_model_len, cap_mode="clip"
    )
    schedule = build_schedule(make_trace([row], 512), options)
    (request,) = schedule.requests
    assert 1 <= request.input_tokens <= min(lengths[0], max_input or lengths[0])
    assert 1 <= request.output_tokens <= min(lengths[1], max_output or lengths[1])
    assert request.input_tokens + request.output_tokens <= (max_model_len or 10**9)
    assert request.hash_ids is not None and len(request.hash_ids) == -(-request.input_tokens // 512)
    assert sum(schedule.clipped.values()) == ((request.input_tokens, request.output_tokens) != lengths)


def test_only_requests_that_are_sent_count_as_clipped() -> None:
    trace = make_trace([TraceRow(i, 100, 10) for i in range(6)])
    schedule = build_schedule(trace, ScheduleOptions(limit=2, max_input_tokens=50, cap_mode="clip"))
    assert sum(schedule.clipped.values()) == len(schedule.requests) == 2
    assert schedule.dropped == {"over_limit": 4}


def test_same_seed_same_schedule_and_another_seed_another() -> None:
    trace = read_trace(SAMPLES / "mooncake_conversation_300s_short.jsonl")
    first, second, other = (
        build_schedule(trace, ScheduleOptions(rate_scale=1.5, dejitter=True, seed=seed)) for seed in (3, 3, 4)
    )
    assert first.requests == second.requests
    assert first.requests != other.requests


@pytest.mark.parametrize("scale", [0.25, 1.0, 2.0, 2.5])
def test_rate_scale_changes_the_count_and_not_the_speed(scale: float) -> None:
    trace = read_trace(SAMPLES / "azure_conv_120s.csv")
    schedule = build_schedule(trace, ScheduleOptions(rate_scale=scale))
    assert len(schedule.requests) == pytest.approx(scale * len(trace.rows), rel=0.2)
    assert arrivals(schedule) == sorted(arrivals(schedule))
    assert 100 * S < arrivals(schedule)[-1] <= trace.rows[-1].arrival_ns
    whole = Counter(request.trace_row for request in schedule.requests)
    assert max(whole.values()) <= max(1, -(-scale // 1))


def test_dejitter_spreads_equal_stamps_within_their_bin_only() -> None:
    rows = [TraceRow(at * 3 * S, 10, 5) for at in range(20) for _ in range(8)]
    schedule = build_schedule(make_trace(rows), ScheduleOptions(dejitter=True))
    assert schedule.dejitter_ns == 3 * S
    assert len(set(arrivals(schedule))) == len(rows)
    assert all(
        0 <= at - rows[r.trace_row].arrival_ns < 3 * S
        for r, at in zip(schedule.requests, arrivals(schedule), strict=True)
    )
    assert [request.trace_row for request in schedule.requests] == list(range(len(rows)))
    assert arrivals(build_schedule(make_trace(rows), ScheduleOptions())) == [row.arrival_ns for row in rows]


def test_dejitter_is_refused_where_stamps_are_fine() -> None:
    with pytest.raises(TraceError, match="quantised"):
        build_schedule(read_trace(SAMPLES / "azure_conv_120s.csv"), ScheduleOptions(dejitter=True))


def test_an_empty_schedule_is_refused_with_the_reasons() -> None:
    with pytest.raises(TraceError, match="over_max_model_len: 1"):
        build_schedule(make_trace([TraceRow(0, 100, 5)]), ScheduleOptions(max_model_len=50))


@examples(40)
@given(
    times=st.lists(st.integers(0, 10_000), min_size=1, max_size=40),
    scale=st.floats(0.1, 0.99),
    limit=st.none() | st.integers(1, 10),
    duration=st.none() | st.floats(0.5, 20),
)
def test_rows_are_scheduled_or_dropped(
    times: list[int], scale: float, limit: int | None, duration: float | None
) -> None:
    trace = make_trace([TraceRow(at * MS, 10 + at % 7, 5) for at in sorted(times)])
    options = ScheduleOptions(rate_scale=scale, limit=limit, duration_s=duration, max_input_tokens=14)
    try:
        schedule = build_schedule(trace, options)
    except TraceError:
        return
    assert len(schedule.requests) + sum(schedule.dropped.values()) == len(times)


def test_ideal_hit_rate_counts_leading_blocks_seen_before() -> None:
    rows = [
        TraceRow(0, 1024, 1, (1, 2)),
        TraceRow(1, 1024, 1, (1, 3)),  # 512 shared
        TraceRow(2, 1024, 1, (1, 3)),  # all shared, of which the last token is computed anyway
        TraceRow(3, 512, 1, (9,)),
    ]
    schedule = build_schedule(make_trace(rows, 512), ScheduleOptions())
    assert ideal_hit_rate(schedule.requests, 512) == (512 + 1023) / (3 * 1024 + 512)
    assert ideal_hit_rate(schedule.requests, None) is None
