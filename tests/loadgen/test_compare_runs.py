"""Runs are compared request by request where they had the same load."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import orjson
import pytest

from loadgen.cli import compare as compare_command
from loadgen.figures.compare import compare
from loadgen.figures.load_difference import load_difference
from loadgen.figures.summary import summarize
from loadgen.record import RequestResult, Run
from loadgen.record.writer import RunWriter, prepare_directory, write_intent
from loadgen.report.comparison import render_comparison_text
from loadgen.schedule import Schedule, ScheduledRequest

ENV = {
    "scheduled": 300, "workers": 1, "model": "m", "base_url": "u", "started_at": "t", "seed": 0,
    "load": {"name": "n"}, "dropped": {}, "clipped": {}, "dejitter_ms": None, "objectives": [],
    "limits": {"lag_p50_ms": 1, "lag_p99_ms": 1, "lag_max_ms": 1, "rate_error": 1, "gap_distance": 1},
}  # fmt: skip


def results(scale: float, *, seed: int = 0, rows_from: int = 0) -> list[RequestResult]:
    """300 requests; what differs between them is the same for every scale."""
    ttft_ns = np.random.default_rng(seed).lognormal(17, 0.8, 300) * scale
    return [
        RequestResult(
            index=i, request_id=f"r{i}", trace_row=rows_from + i, intended_ns=i * 10**7, sent_ns=i * 10**7,
            first_token_ns=i * 10**7 + int(wait), last_token_ns=i * 10**7 + int(wait),
            end_ns=i * 10**7 + int(wait), output_tokens=1,
        )
        for i, wait in enumerate(ttft_ns)
    ]  # fmt: skip


def run_of(name: str, rows: list[RequestResult]) -> Run:
    return Run(name, ENV, rows)


def test_a_run_does_not_differ_from_itself() -> None:
    change = compare(run_of("a", results(1.0)), run_of("b", results(1.0)))
    assert change["paired"]
    ttft = change["measures"]["ttft_from_due"]
    rows = [ttft[name] for name in ("p50", "p90", "p99", "mean")]
    assert all(not row["differs"] and row["change"] == 0 for row in rows)
    assert change["measures"]["tpot"] is None


def test_pairing_shows_what_independent_samples_hide() -> None:
    base, slower = results(1.0), results(1.06)
    paired = compare(run_of("a", base), run_of("b", slower))["measures"]["ttft_from_due"]["p50"]
    assert paired["differs"] and paired["change_share"] == pytest.approx(0.06, abs=1e-6)
    other = compare(run_of("a", base), run_of("b", results(1.06, seed=1, rows_from=1000)))
    assert not other["paired"] and not other["measures"]["ttft_from_due"]["p50"]["differs"]


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, scale in {"base": 1.0, "slow": 1.5}.items():
        directory = prepare_directory(tmp_path / name)
        write_intent(directory, ENV, [])
        writer = RunWriter(directory)
        for result in results(scale):
            writer.add(result)
        writer.end({"cpu_s": 0.0, "wall_s": 1.0, "interrupted": False, "max_stall_ns": 0})

    def run(*flags: str) -> int:
        parser = argparse.ArgumentParser()
        compare_command.add_arguments(parser)
        runs = [str(tmp_path / name) for name in ("base", "slow")]
        return compare_command.run(parser.parse_args([*runs, *flags]))

    assert run("-o", str(tmp_path / "c.html")) == 0 and run("-o", str(tmp_path / "c.json")) == 0
    printed = capsys.readouterr()
    assert "slow against base (paired" in printed.out
    assert f"wrote {tmp_path / 'c.html'}\n" in printed.err
    assert (tmp_path / "c.html").read_text().count("<svg") == 3
    (change,) = orjson.loads((tmp_path / "c.json").read_bytes())
    assert change["measures"]["ttft_from_due"]["p50"]["differs"]
    assert run("-o", str(tmp_path / "c.pdf")) == 1


def load_of(gap_ns: int, *, seed: int = 0, output_tokens: int = 8, sha256: str = "a") -> tuple[Run, Schedule]:
    env = ENV | {"seed": seed, "load": {"name": "trace.jsonl", "sha256": sha256}, "max_inflight": None}
    requests = [ScheduledRequest(i, i * gap_ns, 100 + i, output_tokens, i) for i in range(11)]
    return Run("x", env, []), Schedule(requests)


def test_loads_that_differ_are_told_by_their_parts() -> None:
    base = load_of(10**8)
    assert load_difference(*base, *load_of(10**8)) == {}
    assert load_difference(*base, *load_of(5 * 10**7, seed=3, output_tokens=16)) == {
        "due times, requests/s": {"base": 10.0, "other": 20.0},
        "answer tokens, mean": {"base": 8.0, "other": 16.0},
        "seed": {"base": 0, "other": 3},
    }
    assert load_difference(*base, *load_of(10**8, sha256="b")) == {
        "load": {"base": "trace.jsonl", "other": "trace.jsonl"}
    }


def test_the_text_says_that_loads_differ() -> None:
    runs = [run_of("a", results(1.0)), run_of("b", results(1.0))]
    summaries = [summarize(run) for run in runs]
    parts = {"seed": {"base": 0, "other": 3}, "load": {"base": "t.jsonl", "other": "t.jsonl"}}
    change = compare(*runs) | {"load": parts}
    text = render_comparison_text(runs, summaries, [change])
    assert "THE LOADS DIFFER" in text and "0 -> 3\n" in text and "t.jsonl in both, but not the same" in text
    assert "DIFFER" not in render_comparison_text(runs, summaries, [change | {"load": {}}])
