"""The search for the highest good rate, against servers whose limit is known."""

from __future__ import annotations

import argparse
from pathlib import Path

import orjson
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cli import capacity
from loadgen.mock import MockServer, Script
from loadgen.run.bracket import Bracket, Probe
from tests.support.examples import examples


@examples(200)
@given(limit=st.floats(0.3, 30), first=st.floats(0.5, 5), precision=st.floats(0.05, 0.5))
def test_the_limit_lies_between_good_and_too_much(limit: float, first: float, precision: float) -> None:
    bracket = Bracket(first, 0.9, precision)
    while (rate := bracket.next_rate()) is not None:
        attainment = 1.0 if rate <= limit else 0.5
        bracket.add(Probe(rate, attainment, [attainment, attainment], None))
    assert bracket.best is not None and bracket.lowest_failed is not None
    assert bracket.best.rate <= limit < bracket.lowest_failed.rate
    assert bracket.lowest_failed.rate / bracket.best.rate <= 1 + precision
    assert len(bracket.probes) <= 14


def test_a_lucky_probe_above_a_failed_one_does_not_count() -> None:
    bracket = Bracket(1, 0.9, 0.05)
    for rate, attainment in ((1, 0.95), (2, 0.5), (1.4, 0.5), (1.8, 0.95)):
        bracket.add(Probe(rate, attainment, [0, 1], None))
    assert bracket.best is not None and bracket.best.rate == 1


def test_the_command_finds_what_a_server_can_serve(tmp_path: Path) -> None:
    """One at a time, 0.05 s each: 20 requests a second, and at 40 a queue grows to a second."""
    parser = argparse.ArgumentParser()
    capacity.add_arguments(parser)
    with MockServer(Script(ttft_s=0.05, itl_s=0.0, capacity=1)) as server:
        flags = ["--base-url", server.base_url, "--slo", "ttft=700", "--from-rate", "10", "--requests", "40"]
        flags += ["--output-tokens", "1", "--arrivals", "constant", "--lag-limits", "1e5,1e5,1e5"]
        flags += ["--precision", "0.9", "--probes", "4", "--no-metrics", "--output", str(tmp_path / "search")]
        assert capacity.run(parser.parse_args(flags)) in (0, 2)
    found = orjson.loads((tmp_path / "search" / "capacity.json").read_bytes())
    rates = {probe["rate"]: probe["attainment"] for probe in found["probes"]}
    assert next(iter(rates)) == 10
    assert found["too_much_rps"] is not None and found["too_much_rps"] <= 80
    assert rates[found["too_much_rps"]] < 0.9
    if found["capacity_rps"] is not None:  # on a starved machine even the first rate may be too much
        assert rates[found["capacity_rps"]] >= 0.9 and found["capacity_rps"] < found["too_much_rps"]
    assert len(list((tmp_path / "search").glob("probe-*/summary.json"))) == len(rates)
