"""What is shown while requests run comes from counters that workers write and nobody waits for."""

from __future__ import annotations

import io
from functools import partial

import pytest

from loadgen.record import RequestResult
from loadgen.run import status_lines
from loadgen.run.counters import Counters
from loadgen.run.live import live_lines
from loadgen.run.status_lines import StatusLines
from loadgen.simulator.setting import Setting, simulate
from tests.support.simulation import make_profile, random_load

MS = 1_000_000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def result(ttft_ms: float) -> RequestResult:
    at = round(ttft_ms * MS)
    return RequestResult(
        index=0, request_id="", trace_row=0, intended_ns=0, sent_ns=0,
        first_token_ns=at, end_ns=at, output_tokens=3,
    )  # fmt: skip


def counters() -> Counters:
    shared = Counters(2)
    for worker in (0, 1):
        shared.set(worker, sent=5, finished=4, failed=1, in_flight=1, max_lag_us=1500 * (1 + worker))
        for ttft_ms in (10, 100, 1000):
            shared.add(worker, result(ttft_ms))
    return shared


def test_workers_are_summed_and_percentiles_near() -> None:
    shared = counters()
    assert (shared.total("sent"), shared.total("output_tokens"), shared.largest("max_lag_us")) == (
        10,
        18,
        3000,
    )
    assert shared.ttft_ms(0.5) == pytest.approx(100, rel=0.15)
    assert shared.ttft_ms(0.99) == pytest.approx(1000, rel=0.15)
    assert Counters(1).ttft_ms(0.5) is None


def test_a_terminal_is_drawn_over_and_left_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_lines, "LIVE_INTERVAL_S", 0.0)
    terminal = Terminal()
    with StatusLines(terminal) as status:
        status.update(partial(live_lines, counters(), 20))
        status.update(partial(live_lines, counters(), 20))
    shown = terminal.getvalue()
    assert "8/20 finished" in shown and "2 in flight" in shown and "2 failed" in shown
    erase = "\x1b[4A\x1b[J"
    assert shown.count(erase) == 2 and shown.endswith(erase)


def test_elsewhere_a_plain_line_comes_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    with StatusLines(stream) as status:
        status.update(lambda _: ["too early"])
    monkeypatch.setattr(status_lines, "PLAIN_INTERVAL_S", 0.0)
    with StatusLines(stream) as status:
        status.update(lambda _: ["a", "b"])
    assert stream.getvalue() == "a, b\n"


def test_a_simulation_tells_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status_lines, "PLAIN_INTERVAL_S", 0.0)
    simulate(make_profile(), Setting(replicas=2), random_load(3), None, lambda _: None)
    assert capsys.readouterr().err.splitlines()[-1] == "3 of 3 requests, 2 replica(s)"
