"""Whole replays against a server that knows the truth.

Times are asserted only where the truth differs by far more than a busy machine could.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest

from loadgen.figures.summary import summarize
from loadgen.mock import MockServer, Script
from loadgen.record import read_run
from loadgen.report.text import render_text

from .conftest import Replayer, run_replay

# The machine may starve client and server for a second; what fails three times in a row is wrong.
pytestmark = pytest.mark.flaky(reruns=2)

MS = 1_000_000
FAST = {"ttft_s": 0.01, "itl_s": 0.001}


def test_role_only_event_is_not_the_first_token(replay: Replayer) -> None:
    with MockServer(Script(head_event_s=0.0, ttft_s=0.2, itl_s=0.001)) as server:
        run = replay(server, [(at, 10, 4) for at in (0, 20, 40)])
    assert run.exit_code == 0
    for result, truth in zip(run.results, server.truths, strict=True):
        reported = result.since_sent(result.first_token_ns)
        assert reported is not None and reported > 190 * MS
        # The truth is taken on the same clock of the same machine.
        assert abs(reported - (truth.first_token_ns - truth.received_ns)) < 100 * MS
    assert run.summary["latency_ms"]["headers_from_sent"]["p50"] < 150


@pytest.mark.parametrize(
    ("script", "method"),
    [
        (Script(tokens_per_chunk=5, ttft_s=0.05, itl_s=0.02), "usage_spread"),
        (Script(tokens_per_chunk=5, ttft_s=0.05, itl_s=0.02, token_ids=True), "token_ids"),
        (Script(tokens_per_chunk=5, ttft_s=0.05, itl_s=0.02, running_usage=True), "running_usage"),
    ],
)
def test_several_tokens_a_chunk_do_not_stretch_token_latency(
    replay: Replayer, script: Script, method: str
) -> None:
    with MockServer(script) as server:
        run = replay(server, [(0, 10, 20)])
    (result,) = run.results
    assert (result.token_method, result.output_tokens, list(result.chunk_tokens)) == (method, 20, [5] * 4)
    latency = run.summary["latency_ms"]
    assert (latency["inter_token"]["n"], latency["inter_chunk"]["n"]) == (15, 3)
    assert latency["inter_chunk"]["mean"] == pytest.approx(5 * latency["inter_token"]["mean"])
    assert latency["tpot"]["p50"] == pytest.approx(latency["inter_token"]["mean"])


def test_without_usage_a_chunk_counts_as_one_token_and_says_so(replay: Replayer) -> None:
    with MockServer(Script(usage=False, **FAST)) as server:
        run = replay(server, [(0, 10, 6)])
    assert run.summary["tokens"]["methods"] == {"chunks": 1}
    assert run.summary["tokens"]["output"] == 6


def test_overload_is_charged_from_the_due_time(replay: Replayer) -> None:
    """40 requests in 0.4 s; the server takes 4 at once, 0.1 s each: the last waits most of a second."""
    with MockServer(Script(ttft_s=0.1, itl_s=0.0, capacity=4)) as server:
        run = replay(server, [(10 * i, 10, 1) for i in range(40)])
    assert run.summary["requests"]["succeeded"] == 40
    assert run.results[-1].since_due(run.results[-1].first_token_ns) > 400 * MS
    assert run.summary["load"]["max_in_flight"] > 20


def test_a_cap_on_requests_in_flight_hides_nothing(replay: Replayer) -> None:
    with MockServer(Script(ttft_s=0.1, itl_s=0.0)) as server:
        run = replay(
            server, [(10 * i, 10, 1) for i in range(40)], "--max-inflight", "4", "--lag-limits", "100,200,300"
        )
    assert server.max_in_flight == 4 == run.summary["load"]["max_in_flight"]
    assert run.exit_code == 3
    latency = run.summary["latency_ms"]
    assert latency["ttft_from_due"]["max"] > 400 + latency["ttft_from_sent"]["p50"]


def test_four_hundred_at_once_are_all_in_flight(replay: Replayer) -> None:
    with MockServer(Script(ttft_s=2.0, itl_s=0.0)) as server:
        run = replay(server, [(0, 5, 1)] * 400)
    assert run.summary["requests"]["succeeded"] == 400
    assert run.summary["load"]["max_in_flight"] == 400 == server.max_in_flight


@pytest.mark.parametrize(
    "script",
    [
        Script(split_bytes=7, token_text=" wörld🦊", comments=True, **FAST),
        Script(merge_events=3, comments=True, **FAST),
        Script(line_end="\r\n", comments=True, **FAST),
        Script(line_end="\r\n", split_bytes=11, **FAST),
        Script(behaviour="no_done", **FAST),
    ],
    ids=["split", "merged", "crlf", "crlf-split", "no-done"],
)
def test_every_token_is_found_however_the_stream_is_written(replay: Replayer, script: Script) -> None:
    with MockServer(script) as server:
        run = replay(server, [(0, 10, 7), (5, 10, 3)])
    assert run.exit_code == 0
    assert [len(result.chunk_ns) for result in run.results] == [7, 3]
    assert run.summary["tokens"]["methods"] == {"usage": 2}


@pytest.mark.parametrize(
    ("behaviour", "failure"),
    [
        ("429", "http_429"),
        ("500", "http_500"),
        ("cut", "stream_cut"),
        ("error", "error_in_stream"),
        ("malformed", "malformed_sse"),
        ("not_http", "malformed_http"),
        ("stall", "timeout"),
    ],
)
def test_failures_are_counted_by_kind_and_kept_out_of_latencies(
    replay: Replayer, behaviour: str, failure: str
) -> None:
    with MockServer(Script(behaviour=behaviour, misbehave_every=3, **FAST)) as server:
        run = replay(server, [(5 * i, 10, 4) for i in range(9)], "--timeout", "1.5")
    assert run.exit_code == 0
    assert run.summary["requests"]["failures"] == {failure: 3}
    assert run.summary["requests"]["succeeded"] == 6 == run.summary["latency_ms"]["ttft_from_due"]["n"]
    assert [result.index for result in run.results] == list(range(9))
    assert f"3 x {failure}" in render_text(run.summary)


def test_every_request_failing_makes_the_server_unusable(replay: Replayer) -> None:
    with MockServer(Script(behaviour="500")) as server:
        run = replay(server, [(0, 10, 4)] * 3)
    assert run.exit_code == 4 and run.summary["requests"]["failures"] == {"http_500": 3}


def test_a_dead_server_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 3, "output_length": 4}')
    assert run_replay([str(trace), "--base-url", url]) == 4
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and url in error and "connect_refused" in error


@pytest.mark.parametrize(
    ("trace", "flags", "message"),
    [
        ("nonsense", [], "unknown trace format"),
        ('{"timestamp": 0, "input_length": 3, "output_length": 4}', ["--base-url", "ftp://x"], "--base-url"),
        (
            '{"timestamp": 0, "input_length": 300, "output_length": 4}',
            ["--max-input-tokens", "9"],
            "no request",
        ),
        (
            '{"timestamp": 0, "input_length": 3, "output_length": 4}',
            ["--output", "/dev/null/x"],
            "/dev/null/x",
        ),
    ],
)
def test_bad_usage_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trace: str, flags: list[str], message: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(trace)
    with MockServer() as server:
        assert run_replay([str(path), "--base-url", server.base_url, *flags]) == 1
    assert message in capsys.readouterr().err


def test_an_unknown_model_is_refused_with_the_known_ones(
    replay: Replayer, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer() as server:
        assert replay(server, [(0, 3, 4)], "--model", "other").exit_code == 4
    assert "there are mock" in capsys.readouterr().err


def test_what_the_server_receives(replay: Replayer) -> None:
    with MockServer(Script(**FAST)) as server:
        run = replay(server, [(0, 13, 4), (200, 700, 6)], "--api-key", "secret", "--warmup", "1")
    warm_up, *truths = server.truths
    assert warm_up.body["prompt"][:1] != truths[0].body["prompt"][:1]
    for truth, (inputs, outputs), result in zip(truths, [(13, 4), (700, 6)], run.results, strict=True):
        prompt = truth.body.pop("prompt")
        assert len(prompt) == inputs and all(1000 <= token < 30000 for token in prompt)
        assert truth.body == {
            "model": "mock",
            "max_tokens": outputs,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        assert truth.headers["authorization"] == "Bearer secret"
        assert truth.headers["x-request-id"] == result.request_id
    assert run.summary["tokens"]["prompt_length_errors"] == 0


def test_same_seed_and_nonce_give_the_same_bodies(replay: Replayer) -> None:
    rows = [(0, 40, 2), (1, 50, 2), (2, 60, 2)]

    def bodies(*flags: str) -> list[dict[str, object]]:
        with MockServer(Script(**FAST)) as server:
            replay(server, rows, *flags)
        return sorted((truth.body for truth in server.truths), key=orjson.dumps)

    fixed = bodies("--seed", "7", "--nonce", "1")
    assert fixed == bodies("--seed", "7", "--nonce", "1")
    assert fixed != bodies("--seed", "8", "--nonce", "1")
    assert bodies() != bodies()  # a nonce of its own, so that no run meets the last one's cache


def test_two_runs_never_use_the_same_request_ids(replay: Replayer) -> None:
    with MockServer(Script(**FAST)) as server:
        for _ in range(2):
            replay(server, [(i, 10, 1) for i in range(5)])
    assert len({truth.headers["x-request-id"] for truth in server.truths}) == 10


def test_max_model_len_of_the_server_is_kept(replay: Replayer) -> None:
    with MockServer(Script(max_model_len=100, **FAST)) as server:
        run = replay(server, [(0, 96, 4), (1, 97, 4)])
        assert run.summary["run"]["dropped"] == {"over_max_model_len": 1}
        run = replay(server, [(0, 96, 4), (1, 97, 4)], "--cap-mode", "clip")
    assert run.summary["run"]["clipped"] == {"over_max_model_len": 1}
    assert [len(truth.body["prompt"]) for truth in server.truths] == [96, 96, 96]


def test_a_pooled_connection_closed_by_the_server_is_no_failure(replay: Replayer) -> None:
    with MockServer(Script(ttft_s=0.0, itl_s=0.0, close_on_reuse=True)) as server:
        run = replay(server, [(0, 10, 1)] * 20, "--max-inflight", "1")  # each finds the last one's connection
    assert run.summary["requests"]["failures"] == {}
    assert run.summary["requests"]["succeeded"] == 20
    assert run.summary["requests"]["reconnected"] > 0


def test_connections_are_reused(replay: Replayer) -> None:
    with MockServer(Script(ttft_s=0.0, itl_s=0.0)) as server:
        run = replay(server, [(0, 10, 1)] * 100, "--max-inflight", "2")
    assert run.summary["requests"]["succeeded"] == 100
    assert server.connections < 40  # two in use, the spares, and those of preflight and metrics


def test_a_starved_client_is_told_from_a_good_one(replay: Replayer) -> None:
    with MockServer(Script(**FAST)) as server:
        run = replay(server, [(0, 10, 2)] * 3, "--lag-limits", "1e-6,1e-6,1e-6")
    assert run.exit_code == 3 and not run.summary["verdict"]["valid"]
    assert render_text(run.summary).startswith("LOAD_INVALID")


def test_the_report_is_recomputed_from_the_log_alone(replay: Replayer, tmp_path: Path) -> None:
    with MockServer(Script(**FAST)) as server:
        run = replay(server, [(i, 10, 5) for i in range(20)])
    again = orjson.loads(orjson.dumps(summarize(read_run(tmp_path / "run"))))
    assert again == run.summary


def test_sigint_leaves_a_report_of_what_was_sent_and_says_so(tmp_path: Path) -> None:
    trace, record = tmp_path / "t.jsonl", tmp_path / "run"
    rows = [{"timestamp": 100 * i, "input_length": 5, "output_length": 2} for i in range(600)]
    trace.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    with MockServer(Script(**FAST)) as server:
        command = [sys.executable, "-m", "loadgen", "replay", str(trace), "--base-url", server.base_url]
        process = subprocess.Popen([*command, "--output", str(record)], stdout=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while len(server.truths) < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        text, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    run = read_run(record)
    assert run.ends[0]["interrupted"] and 4 <= len(run.results) < 600
    assert summarize(run)["requests"]["unsent"] == 600 - len(run.results)
    assert "LOAD_INVALID" in text and "because interrupted: " in text
