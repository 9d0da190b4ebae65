"""GET /debug/live: what the live page is made of."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine.block_manager import BlockState
from engine.record import RequestRecord
from server.monitoring import live
from server.monitoring.live import LiveHistory
from tests.support.fake_engine import FakeEngine

SECOND = 10**9


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    engine = FakeEngine(lambda request, index: [0], 10)
    yield engine
    engine.shutdown()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The monotonic time in nanoseconds, to be moved by the test."""
    now_ns = [1000 * SECOND]
    monkeypatch.setattr(live.time, "monotonic_ns", lambda: now_ns[0])
    return now_ns


def test_the_history_is_what_the_counters_gained_in_each_second(engine: FakeEngine, clock: list[int]) -> None:
    history = LiveHistory(engine)
    for generated, prompt, seconds in ((0, 0, 1), (30, 200, 1), (45, 0, 2), (0, 7, 1)):
        engine.counters.generation_tokens += generated
        engine.counters.prompt_tokens += prompt
        history.sample()
        clock[0] += seconds * SECOND
    columns = history.snapshot()["history"]
    assert columns["generated_per_s"] == [30, 45, 0]
    assert columns["prompt_per_s"] == [200, 0, 3.5]
    assert columns["age_s"] == [4, 3, 1]
    assert columns["running"] == columns["waiting"] == columns["kv_usage"] == [0, 0, 0]


def test_latencies_are_of_the_window_alone(engine: FakeEngine, clock: list[int]) -> None:
    history = LiveHistory(engine)
    first_tokens = engine.counters.time_to_first_token
    first_tokens.observe(100.0)  # before the server's first sample
    history.sample()
    assert history.snapshot()["latency"]["time_to_first_token"] == {
        "count": 0, "p50": None, "p90": None, "p99": None
    }  # fmt: skip
    for _ in range(20):
        first_tokens.observe(0.25)
    latency = history.snapshot()["latency"]["time_to_first_token"]
    assert latency["count"] == 20 and 0.2 < latency["p50"] < latency["p90"] < latency["p99"] <= 0.3
    for _ in range(live.WINDOW_S + 1):
        clock[0] += SECOND
        history.sample()
    assert history.snapshot()["latency"]["time_to_first_token"]["count"] == 0
    assert len(history.snapshot()["history"]["age_s"]) == live.WINDOW_S


@pytest.mark.parametrize("num_blocks", [1, 100, live.MAX_CELLS, live.MAX_CELLS + 1, 5000])
def test_the_block_map_counts_each_block_in_one_cell(
    engine: FakeEngine, num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = np.random.default_rng(0).integers(0, 3, num_blocks).astype(np.uint8)
    monkeypatch.setattr(engine, "block_states", lambda: states)
    blocks = LiveHistory(engine).snapshot()["blocks"]
    assert blocks["total"] == num_blocks
    assert len(blocks["used"]) == len(blocks["cached"]) <= live.MAX_CELLS
    for name, state in (("used", BlockState.USED), ("cached", BlockState.CACHED)):
        cells = [states[i : i + blocks["per_cell"]] for i in range(0, num_blocks, blocks["per_cell"])]
        assert blocks[name] == [int((cell == state).sum()) for cell in cells]
        assert blocks[f"num_{name}"] == sum(blocks[name])


def test_requests_are_told_in_seconds_and_by_state(engine: FakeEngine, clock: list[int]) -> None:
    now = clock[0]
    records = [
        RequestRecord("waits", arrived_ns=now - 5 * SECOND, queued_ns=now),
        RequestRecord("fills", arrived_ns=now - 4 * SECOND, first_scheduled_ns=now),
        RequestRecord(
            "decodes",
            arrived_ns=now - 3 * SECOND,
            first_scheduled_ns=now - 2 * SECOND,
            first_token_ns=now - SECOND,
            token_times_ns=[[now - SECOND, now]],
            finish_reasons=[None],
        ),
        RequestRecord(
            "ended",
            arrived_ns=now - 3 * SECOND,
            first_token_ns=now - 2 * SECOND,
            finished_ns=now - SECOND,
            finish_reasons=["stop", "length"],
        ),
    ]
    for record in records:
        engine.recent_requests.add(record)
    rows = LiveHistory(engine).snapshot()["requests"]
    assert [(row["request_id"], row["state"]) for row in rows] == [
        ("ended", "length"), ("decodes", "decode"), ("fills", "prefill"), ("waits", "waiting"),
    ]  # fmt: skip
    assert [row["age_s"] for row in rows] == [3, 3, 4, 5]
    assert [row["duration_s"] for row in rows] == [2, 3, 4, 5]
    assert [row["time_to_first_token_s"] for row in rows] == [1, 2, None, None]
    assert rows[1]["num_generated_tokens"] == 2


def test_the_route_samples_by_itself(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SAMPLE_INTERVAL_S", 0.01)
    with serve() as served:
        deadline = time.monotonic() + 10
        while len(served.http.get("/debug/live").json()["history"]["age_s"]) < 3:
            assert time.monotonic() < deadline
        assert served.http.get("/debug/live").json()["health"] == "ok"


def test_the_route_is_a_debug_route_behind_the_key(serve: Any) -> None:
    with serve(api_key=("k",)) as served:
        assert served.http.get("/debug/live").status_code == 401
        assert served.http.get("/debug/live", headers={"x-api-key": "k"}).status_code == 200
    with serve(enable_debug_routes=False) as served:
        assert served.http.get("/debug/live").status_code == 404
