"""Loads in which a request waits for an answer: sessions, and users in a closed loop."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from loadgen.mock import MockServer, Script
from loadgen.schedule.cache import ideal_hit_rate
from loadgen.schedule.from_trace import build_schedule
from loadgen.schedule.options import ScheduleOptions
from loadgen.traces import TraceError, read_trace

from .conftest import read_outcome, run_load, run_replay

# The machine may starve both sides for a second; what fails three times in a row is wrong.
pytestmark = pytest.mark.flaky(reruns=2)

FAST = Script(ttft_s=0.02, itl_s=0.001)
FREE_OF_LAG = ["--lag-limits", "1e5,1e5,1e5"]


def turn(session: str, inputs: int, outputs: int, first_id: int, **when: float) -> str:
    ids = list(range(first_id, first_id - (-inputs // 64)))
    row = {"session_id": session, "input_length": inputs, "output_length": outputs, "hash_ids": ids}
    return json.dumps(row | when)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two sessions that interleave: a waits 50 ms after each answer, b has recorded times."""
    lines = [
        turn("a", 130, 4, 0, timestamp=0),
        turn("b", 64, 2, 100, timestamp=10),
        turn("a", 20, 3, 200, delay=50),
        turn("b", 70, 2, 300, timestamp=300),
        turn("a", 65, 2, 400, delay=50),
    ]
    path = tmp_path / "sessions.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_turns_build_on_the_turns_before(trace: Path) -> None:
    read = read_trace(trace)
    assert (read.format, read.block_size, read.rows_read, len(read.rows)) == ("sessions", 64, 5, 5)
    schedule = build_schedule(read, ScheduleOptions())
    a = [request for request in schedule.requests if request.session == "a"]
    b = [request for request in schedule.requests if request.session == "b"]
    assert [request.input_tokens for request in a] == [130, 130 + 4 + 20, 154 + 3 + 65]
    assert [request.own_tokens for request in a] == [130, 20, 65]
    assert [request.follows for request in a] == [False, True, True]
    assert [(r.follows, r.continues, r.intended_ns) for r in b] == [
        (False, False, 10_000_000),
        (False, True, 300_000_000),
    ]
    assert ideal_hit_rate(schedule.requests, 64) == (130 + 154 + 64) / (130 + 154 + 222 + 64 + 136)


def test_a_turn_over_a_cap_ends_its_session(trace: Path) -> None:
    schedule = build_schedule(read_trace(trace), ScheduleOptions(max_input_tokens=150))
    assert [(r.session, r.turn) for r in schedule.requests] == [("a", 0), ("b", 0), ("b", 1)]
    assert schedule.dropped == {"over_max_input_tokens": 1, "after_dropped_turn": 1}


def test_turns_are_clipped_to_what_their_history_leaves(trace: Path) -> None:
    options = ScheduleOptions(max_output_tokens=2, max_input_tokens=150, cap_mode="clip")
    schedule = build_schedule(read_trace(trace), options)
    a = [request for request in schedule.requests if request.session == "a"]
    assert [(r.input_tokens, r.own_tokens, r.output_tokens) for r in a] == [(130, 130, 2), (150, 18, 2)]
    assert a[1].hash_ids == (200,)
    assert schedule.clipped == {"over_max_output_tokens": 1, "over_max_input_tokens": 1}
    assert schedule.dropped == {"over_max_input_tokens": 1}  # the third turn, since history fills the cap


def test_lengths_of_turns_are_scaled(trace: Path) -> None:
    schedule = build_schedule(read_trace(trace), ScheduleOptions(input_scale=0.5, output_scale=2.0))
    a = [request for request in schedule.requests if request.session == "a"]
    assert [(r.own_tokens, r.output_tokens) for r in a] == [(65, 8), (10, 6), (32, 4)]


def test_copies_of_sessions_do_not_come_with_the_recorded_ones(trace: Path) -> None:
    schedule = build_schedule(read_trace(trace), ScheduleOptions(rate_scale=3.0, duration_s=60.0))
    due = [request.intended_ns for request in schedule.requests if request.turn == 0]
    assert len(set(due)) == 6 and due == sorted(due)
    assert len({request.session for request in schedule.requests}) == 6


@pytest.mark.parametrize("flags", [{"dejitter": True}, {"laps": 2}])
def test_what_sessions_cannot_do_is_refused(flags: dict[str, Any], trace: Path) -> None:
    with pytest.raises(TraceError, match="not for traces of sessions"):
        build_schedule(read_trace(trace), ScheduleOptions(**flags))


def test_sessions_without_arrivals_need_a_rate(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join(turn(name, 10, 2, 0, timestamp=0) for name in "abcdef"))
    with pytest.raises(TraceError, match="--session-rate"):
        build_schedule(read_trace(path), ScheduleOptions())
    schedule = build_schedule(read_trace(path), ScheduleOptions(session_rate=2.0))
    due = [request.intended_ns for request in schedule.requests]
    assert len(set(due)) == 6 and due == sorted(due)


def test_a_turn_is_sent_after_the_answer_and_its_pause(trace: Path, tmp_path: Path) -> None:
    with MockServer(FAST) as server:
        flags = [str(trace), "--base-url", server.base_url, *FREE_OF_LAG, "--output", str(tmp_path / "run")]
        code = run_replay(flags)
    run = read_outcome(code, tmp_path / "run")
    assert run.exit_code == 0 and run.summary["requests"]["succeeded"] == 5
    a = sorted((r for r in run.results if r.session == "a"), key=lambda r: r.turn)
    for before, after in pairwise(a):
        assert before.end_ns is not None and after.intended_ns == before.end_ns + 50_000_000
        assert after.sent_ns is not None and after.sent_ns >= after.intended_ns
    prompts = {truth.headers["x-request-id"]: truth.body["prompt"] for truth in server.truths}
    first, second, third = (prompts[result.request_id] for result in a)
    assert (len(first), len(second), len(third)) == (130, 154, 222)
    assert second[:130] == first and third[:154] == second
    assert run.summary["tokens"]["prompt_length_errors"] == 0


def test_chats_carry_the_conversation(trace: Path, tmp_path: Path) -> None:
    with MockServer(Script(ttft_s=0.02, itl_s=0.001, reasoning_tokens=1, head_event_s=0.0)) as server:
        flags = [str(trace), "--base-url", server.base_url, *FREE_OF_LAG, "--endpoint", "chat"]
        code = run_replay([*flags, "--output", str(tmp_path / "run")])
    run = read_outcome(code, tmp_path / "run")
    assert run.exit_code == 0
    messages = {truth.headers["x-request-id"]: truth.body["messages"] for truth in server.truths}
    a = sorted((r for r in run.results if r.session == "a"), key=lambda r: r.turn)
    last = messages[a[-1].request_id]
    assert [message["role"] for message in last] == ["user", "assistant"] * 2 + ["user"]
    assert [len(message["content"].split()) for message in last] == [130, 4, 20, 3, 65]
    assert messages[a[0].request_id] == last[:1]
    for result in run.results:  # the first token is reasoning, which is a token but not content
        assert result.first_token_ns == result.chunk_ns[0] and result.first_content_ns == result.chunk_ns[1]


def test_users_wait_for_their_answers(tmp_path: Path) -> None:
    record = tmp_path / "run"
    with MockServer(FAST) as server:
        flags = ["--base-url", server.base_url, "--concurrency", "3", "--requests", "12", *FREE_OF_LAG]
        code = run_load([*flags, "--think-time", "0.01", "--output-tokens", "3", "--output", str(record)])
    run = read_outcome(code, record)
    assert run.exit_code == 0 and run.summary["requests"]["succeeded"] == 12
    assert server.max_in_flight <= 3
    for result in run.results[3:]:
        end_ns = run.results[result.index - 3].end_ns
        assert end_ns is not None and result.intended_ns == end_ns + 10_000_000


def test_a_closed_loop_ends_with_its_duration(tmp_path: Path) -> None:
    record = tmp_path / "run"
    with MockServer(FAST) as server:
        flags = ["--base-url", server.base_url, "--concurrency", "2", "--requests", "10000", *FREE_OF_LAG]
        code = run_load([*flags, "--duration", "0.5", "--output-tokens", "2", "--output", str(record)])
    run = read_outcome(code, record)
    assert run.exit_code == 0 and run.summary["requests"]["failures"] == {}
    assert 2 <= len(run.results) < 1000
    assert all(result.intended_ns < 500_000_000 for result in run.results)


def test_a_load_without_an_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_load(["--rate", "3"]) == 1
    assert "--requests N, or for how long" in capsys.readouterr().err
