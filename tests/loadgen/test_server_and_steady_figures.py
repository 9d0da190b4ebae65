"""What the server says of itself, and the part of a run that shows a steady state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import orjson
import pytest

from loadgen.client import ConnectionPool, Exchange, Server
from loadgen.figures.percentiles import confidence_intervals, percentiles_with_failures
from loadgen.figures.server import server_figures
from loadgen.figures.steady import steady_state
from loadgen.record import RequestResult, files
from loadgen.run import scrape
from loadgen.run.scrape import read_metrics

MS = 1_000_000
METRICS = b"""# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m, {x}"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
octavo:prefix_cache_hits_total{model_name="m"} 1.5e+03
num_requests_waiting 7
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:not_num_requests_waiting_at_all{model_name="m"} 9
vllm:prompt_tokens_total_created{model_name="m"} 1.7e+09
"""


def test_metrics_are_found_under_the_names_of_several_servers() -> None:
    """Values of several engines are summed; names that only contain a known one are other metrics."""
    expected = {"running": 5.0, "prefix_hits": 1500.0, "waiting": 7.0, "kv_usage": 0.25}
    assert read_metrics(METRICS) == expected
    assert read_metrics(b"<html>not metrics</html>") == {}


class ScriptedPool:
    """Answers /metrics with what it was given, one after the other; an empty body times out."""

    def __init__(self, bodies: list[bytes]) -> None:
        self.bodies = bodies

    async def fetch(self, payload: Sequence[bytes], timeout_s: float) -> Exchange:
        body = self.bodies.pop(0)
        exchange = Exchange(payload, failure=None if body else "timeout")
        exchange.response.status, exchange.response.parts = 200, [body]
        return exchange


@pytest.mark.parametrize(("bodies", "kept"), [([b"", b"running 9"], 0), ([METRICS, b"", METRICS], 2)])
def test_a_missed_scrape_is_left_out_but_a_first_one_ends_it(
    bodies: list[bytes], kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "INTERVAL_S", 0.0)
    pool = ScriptedPool(bodies)

    async def run() -> None:
        start_ns = time.monotonic_ns()
        async with scrape.scraping(
            cast(ConnectionPool, pool), Server("h", ("h", 80), None, ""), tmp_path, start_ns
        ):
            while kept and len(pool.bodies) > 1:
                await asyncio.sleep(0)

    asyncio.run(run())
    lines = (tmp_path / files.SERVER).read_bytes().splitlines()
    assert [orjson.loads(line)["running"] for line in lines] == [5.0] * kept


def test_counters_are_taken_as_growth_and_gauges_at_their_most() -> None:
    first = {"running": 1, "prefix_hits": 100, "prefix_queries": 200, "ttft_sum_s": 1.0, "ttft_count": 10}
    last = {"running": 4, "prefix_hits": 130, "prefix_queries": 300, "ttft_sum_s": 3.0, "ttft_count": 20}
    figures = server_figures([first, {**first, "running": 9}, last], client_ttft_ms=210.0)
    assert figures is not None
    assert (figures["max_running"], figures["prefix_hits"], figures["prefix_hit_rate"]) == (9, 30, 0.3)
    assert (figures["ttft_mean_ms"], figures["client_ttft_mean_ms"]) == (200.0, 210.0)
    assert server_figures([first], None) is None


def run_with(ttft_ms: np.ndarray) -> list[RequestResult]:
    """One request every 100 ms."""
    return [
        RequestResult(
            index=i, request_id="", trace_row=i, intended_ns=i * 100 * MS, sent_ns=i * 100 * MS,
            first_token_ns=round((i * 100 + wait) * MS), end_ns=round((i * 100 + wait) * MS),
        )
        for i, wait in enumerate(ttft_ms)
    ]  # fmt: skip


def noise(count: int) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 5, count)


def test_a_warm_up_is_cut_and_the_rest_is_steady() -> None:
    ttft_ms = 100 + noise(400) + np.concatenate([np.linspace(900, 0, 60), np.zeros(340)])
    steady = steady_state(run_with(ttft_ms))
    assert steady is not None and steady["steady"]
    assert 45 <= steady["warmup_requests"] <= 75
    assert steady["to_s"] == pytest.approx(39.9)


def test_a_queue_that_grows_is_no_steady_state() -> None:
    steady = steady_state(run_with(100 + noise(400) + np.arange(400) * 3.0))
    assert steady is not None and not steady["steady"]


def test_an_even_run_is_steady_and_a_short_one_is_not_judged() -> None:
    steady = steady_state(run_with(100 + noise(400)))
    assert steady is not None and steady["steady"] and steady["ttft_growth_ms_per_s"] is None
    assert steady_state(run_with(100 + noise(20))) is None


def test_percentiles_with_failures_are_endless_from_where_failures_begin() -> None:
    values = [float(MS * i) for i in range(1, 96)] + [None] * 5
    row = percentiles_with_failures(values)
    assert row["n"] == 100 and row["p50"] is not None and row["p90"] is not None and row["p99"] is None


def test_confidence_intervals_cover_the_true_percentile() -> None:
    """Of 60 samples of an exponential distribution, the 95 % intervals hold the true median in most."""
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(60):
        low, high = confidence_intervals(rng.exponential(size=300), scale=1)["p50"]
        held += low <= np.log(2) <= high
    assert held >= 50
