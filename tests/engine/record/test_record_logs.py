from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import orjson
import pytest

from engine.config import ConfigError
from engine.decoding import Decoding
from engine.plan import ScheduledSequence, StepPlan
from engine.record import EventLog, RecentRequests, RequestRecord, StepEntry, StepLog
from engine.record.event_log import RecordFileError, read_event_log
from engine.record.jsonl_writer import JsonlWriter
from engine.record.perfetto import chrome_trace
from engine.record.step_log import read_step_log
from engine.recorder import entry_of_plan
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence
from server.cli.main import main


def make_record(name: str, start: int) -> RequestRecord:
    return RequestRecord(
        name,
        arrived_ns=start,
        tokenized_ns=start + 10,
        queued_ns=start + 20,
        first_scheduled_ns=start + 30,
        first_token_ns=start + 40,
        finished_ns=start + 60,
        token_times_ns=[[start + 40, start + 60]],
        finish_reasons=["length"],
        num_prompt_tokens=3,
    )


def make_sequence(num_prompt: int, num_cached: int) -> Sequence:
    prompt = np.arange(num_prompt, dtype=np.int32)
    sequence = Sequence(Request("r", prompt, SamplingParams(), [], RequestRecord("r")), 0, 16)
    sequence.admit(0, num_cached)
    return sequence


def make_entry(step: int = 0) -> StepEntry:
    """As the scheduler leaves it: this step's tokens already cached, one pending where it samples."""
    decoding, prompt = Decoding(max_num_seqs=1, block_size=4), make_sequence(9, 0)
    decoding.join(make_sequence(5, 4))
    plan = StepPlan(step, decoding.plan())
    prompt.plan(6, samples=False)
    plan.chunks.append(ScheduledSequence(prompt, 0, 0, 6, False))
    entry = entry_of_plan(plan, scheduled_at_ns=1000, num_waiting=2, num_running=2, num_blocks_used=3)
    entry.schedule_ns, entry.launch_ns, entry.collected_at_ns, entry.collect_ns = 10, 20, 1100, 30
    entry.commit_ns, entry.device_ns = 5, 80
    return entry


def test_a_step_is_taken_down_with_the_counters_from_before_it() -> None:
    entry = make_entry()
    assert entry.num_tokens == [5, 9]
    assert entry.num_cached_tokens == [4, 0]
    assert entry.num_scheduled_tokens == [1, 6]
    assert entry.is_prefill == [False, True]
    assert entry.num_scheduled == 7


def test_event_log_round_trip(tmp_path: Path) -> None:
    records = [make_record(f"r{i}", 100 * i) for i in range(50)]
    log = EventLog(tmp_path / "events.jsonl", {"model": "tiny"})
    for record in records:
        log.write(record)
    log.close()
    log.close()
    header, read = read_event_log(tmp_path / "events.jsonl")
    assert read == records
    assert header["config"] == {"model": "tiny"}
    assert header["wall_clock_ns"] > header["monotonic_ns"] > 0


def test_step_log_round_trip(tmp_path: Path) -> None:
    entries = [make_entry(i) for i in range(20)]
    log = StepLog(tmp_path / "steps.jsonl")
    for entry in entries:
        log.write(entry)
    log.close()
    assert read_step_log(tmp_path / "steps.jsonl")[1] == entries


def test_a_file_that_cannot_be_written_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent/events\.jsonl: No such file"):
        EventLog(tmp_path / "absent" / "events.jsonl")


def test_a_line_that_cannot_be_written_loses_only_itself(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path / "log.jsonl", {"format": "f"})
    writer.write({"bad": object()})
    writer.write({"good": np.int64(1)})
    writer.close()
    assert orjson.loads((tmp_path / "log.jsonl").read_bytes().splitlines()[-1]) == {"good": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1"),
        ('{"format":"other"}\n', "line 1"),
        ('{"format":"octavo-event-log/1"}\n{\n{}\n', "line 2"),
    ],
)
def test_a_file_that_is_no_log_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(content)
    with pytest.raises(RecordFileError, match=rf"events\.jsonl.*{message}"):
        read_event_log(path)


def test_a_half_written_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"format":"octavo-event-log/1"}\n' + orjson.dumps(make_record("r", 1)) + b'\n{"requ')
    assert [record.request_id for record in read_event_log(path)[1]] == ["r"]


def test_overlapping_requests_get_lanes_of_their_own_and_free_lanes_are_used_again() -> None:
    trace = chrome_trace([make_record("a", 0), make_record("b", 30), make_record("c", 70)])
    lanes = {event["name"]: event["tid"] for event in trace["traceEvents"] if event["name"] in "abc"}
    assert lanes == {"a": 1, "b": 2, "c": 1}


def test_phases_follow_each_other_without_a_gap() -> None:
    events = chrome_trace([make_record("a", 500)])["traceEvents"]
    phases = [event for event in events if event["name"] in ("tokenize", "queue", "prefill", "decode")]
    assert [event["name"] for event in phases] == ["tokenize", "queue", "prefill", "decode"]
    for before, after in pairwise(phases):
        assert before["ts"] + before["dur"] == pytest.approx(after["ts"])


def test_a_request_still_in_the_queue_can_be_shown() -> None:
    record = RequestRecord("q", arrived_ns=5, tokenized_ns=6, queued_ns=8)
    names = [event["name"] for event in chrome_trace([record])["traceEvents"] if event["ph"] == "X"]
    assert names == ["q", "tokenize", "queue"]


def test_trace_command_writes_what_perfetto_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events, steps, out = (tmp_path / name for name in ("events.jsonl", "steps.jsonl", "trace.json"))
    event_log, step_log = EventLog(events), StepLog(steps)
    event_log.write(make_record("r", 1000))
    step_log.write(make_entry())
    event_log.close()
    step_log.close()
    assert main(["trace", str(events), "--steps", str(steps), "-o", str(out)]) == 0
    trace = orjson.loads(out.read_bytes())
    assert all({"ph", "ts", "pid", "tid", "name"} <= event.keys() for event in trace["traceEvents"])
    assert all(event["dur"] >= 0 for event in trace["traceEvents"] if event["ph"] == "X")
    assert {"r", "schedule", "step 0"} <= {event["name"] for event in trace["traceEvents"]}
    assert main(["trace", str(tmp_path / "absent.jsonl")]) == 1
    assert main(["trace", str(events), "-o", str(tmp_path / "absent" / "trace.json")]) == 1
    assert "absent.jsonl" in capsys.readouterr().err


def test_recent_requests_forget_the_oldest() -> None:
    recent = RecentRequests(capacity=2)
    for name in "abc":
        recent.add(RequestRecord(name))
    assert recent.get("a") is None
    assert [record.request_id for record in recent.newest(10)] == ["c", "b"]
    assert [record.request_id for record in recent.newest(1)] == ["c"]
