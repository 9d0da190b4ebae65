"""The verdict on the load itself trips when what was sent is not what was asked for, and only then."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.figures.load import dispersion, gap_distance, invalid_causes, load_figures
from loadgen.mock import MockServer, Script
from loadgen.record import RequestResult
from loadgen.run.status_lines import StatusLines

from .conftest import read_outcome, run_load

MS = 1_000_000
ENV: dict[str, Any] = {
    "limits": {
        "lag_p50_ms": 0.2, "lag_p99_ms": 2.0, "lag_max_ms": 20.0, "rate_error": 0.001, "gap_distance": 0.01
    }
}  # fmt: skip


def sent(lag: Callable[[int], int], count: int = 2000) -> list[RequestResult]:
    """Poisson arrivals at 100 req/s, each sent `lag(intended)` later."""
    intended = np.random.default_rng(0).exponential(10 * MS, count).cumsum().astype(int).tolist()
    return [
        RequestResult(
            index=place, request_id="", trace_row=place, intended_ns=due,
            dispatched_ns=due + lag(due), sent_ns=due + lag(due), end_ns=due + lag(due) + MS,
        )
        for place, due in enumerate(intended)
    ]  # fmt: skip


def causes(lag: Callable[[int], int]) -> list[str]:
    results = sent(lag)
    return invalid_causes(ENV, load_figures(ENV, results, []))


def test_a_client_on_time_is_valid() -> None:
    assert causes(lambda due: 60_000) == []


def test_a_constant_delay_is_seen() -> None:
    """It moves neither rate nor gaps, and a lag that is anchored to the least late request would hide it."""
    (cause,) = causes(lambda due: 50 * MS)
    assert cause.startswith("lag p50 50 ms (limit 0.2), p99 50 ms (limit 2), max 50 ms (limit 20): ")


def test_drifting_away_from_the_schedule_is_seen_in_the_rate() -> None:
    assert any("offered rate is -0.99%" in cause for cause in causes(lambda due: due // 100))


def test_arrivals_in_lumps_are_seen_in_the_gaps() -> None:
    lumps = causes(lambda due: -(-due // (15 * MS)) * 15 * MS - due)
    assert any("gaps between requests" in cause for cause in lumps)


def test_gap_distance_bears_even_spacing_but_not_noise() -> None:
    even = np.arange(1000) * 10 * MS
    noisy = even + np.random.default_rng(0).integers(0, 100_000, 1000)
    assert gap_distance(even, noisy, 0.2 * MS) == 0
    assert gap_distance(even, even + np.arange(1000) * MS, 0.2 * MS) == 1


def test_waiting_for_a_cap_is_told_from_a_slow_client() -> None:
    results = sent(lambda due: 0)
    for result in results:
        assert result.dispatched_ns is not None
        result.sent_ns, result.end_ns = result.dispatched_ns + 50 * MS, result.dispatched_ns + 150 * MS
    capped = {**ENV, "max_inflight": 4}
    assert (
        "requests waited for --max-inflight 4" in invalid_causes(capped, load_figures(capped, results, []))[0]
    )
    assert "the client fell behind" in invalid_causes(ENV, load_figures(ENV, results, []))[0]
    results[0].connect_ns = 50 * MS
    assert "opening connections" in invalid_causes(ENV, load_figures(ENV, results, []))[0]


def test_dispersion() -> None:
    assert dispersion(np.arange(1000) * 10 * MS) == 0
    assert dispersion(np.repeat(np.arange(10), 50) * 3000 * MS) == pytest.approx(100 / 3, rel=0.1)


@pytest.mark.flaky(reruns=2)
def test_a_client_that_is_starved_on_purpose_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its event loop is held up for a third of a second every tenth."""
    monkeypatch.setattr(StatusLines, "update", lambda self, lines: time.sleep(0.3))
    record = tmp_path / "run"
    with MockServer(Script(ttft_s=0.01, itl_s=0.001)) as server:
        flags = ["--base-url", server.base_url, "--rate", "50", "--requests", "60", "--output-tokens", "3"]
        code = run_load([*flags, "--lag-limits", "5,50,100", "--output", str(record)])
    run = read_outcome(code, record)
    assert run.exit_code == 3 and run.summary["verdict"]["status"] == "LOAD_INVALID"
    assert run.summary["requests"]["succeeded"] == 60  # late, but none is dropped
    assert any("the client fell behind" in cause for cause in run.summary["verdict"]["causes"])
