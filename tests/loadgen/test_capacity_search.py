"""The search for the highest good rate, against servers whose limit is known."""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cli import capacity, exit_codes, report
from loadgen.mock import MockServer, Script
from loadgen.report.capacity import search_charts
from loadgen.run.bracket import Bracket, Probe
from tests.support.examples import examples

SVG = "{http://www.w3.org/2000/svg}"


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


@pytest.fixture(name="search", scope="module")
def search_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Against a server of one request at a time, 0.05 s each: 20 a second, and at 40 a queue grows."""
    parser = argparse.ArgumentParser()
    capacity.add_arguments(parser)
    directory = tmp_path_factory.mktemp("capacity") / "search"
    with MockServer(Script(ttft_s=0.05, itl_s=0.0, capacity=1)) as server:
        flags = ["--base-url", server.base_url, "--slo", "ttft=300", "--from-rate", "10", "--requests", "24"]
        flags += ["--output-tokens", "1", "--arrivals", "constant", "--lag-limits", "1e5,1e5,1e5"]
        flags += ["--precision", "0.9", "--probes", "4", "--no-metrics", "--output", str(directory)]
        assert capacity.run(parser.parse_args(flags)) in (0, 2)
    return directory


def test_the_command_finds_what_a_server_can_serve(search: Path) -> None:
    found = orjson.loads((search / "capacity.json").read_bytes())
    rates = {probe["rate"]: probe["attainment"] for probe in found["probes"]}
    assert next(iter(rates)) == 10
    assert found["too_much_rps"] is not None and found["too_much_rps"] <= 80
    assert rates[found["too_much_rps"]] < 0.9
    if found["capacity_rps"] is not None:  # on a starved machine even the first rate may be too much
        assert rates[found["capacity_rps"]] >= 0.9 and found["capacity_rps"] < found["too_much_rps"]
    assert len(list(search.glob("probe-*/summary.json"))) == len(rates)


@pytest.mark.parametrize("end", [None, KeyboardInterrupt()], ids=["a load that is not sent", "an interrupt"])
def test_a_search_that_ends_early_tells_what_it_found(
    end: BaseException | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def probe(arguments: object, options: object, rate: float, place: int) -> Probe | None:
        if place < 2:
            return Probe(rate, 1.0, [0.9, 1.0])
        if end is not None:
            raise end
        return None

    monkeypatch.setattr(capacity, "_probe", probe)
    parser = argparse.ArgumentParser()
    capacity.add_arguments(parser)
    code = capacity.run(parser.parse_args(["--slo", "ttft=1", "--output", str(tmp_path)]))
    assert code == (exit_codes.LOAD_INVALID if end is None else exit_codes.INTERRUPTED)
    assert "capacity at least 2 req/s with 100.0% good" in capsys.readouterr().out
    assert orjson.loads((tmp_path / "capacity.json").read_bytes())["capacity_rps"] == 2


def test_goodput_is_drawn_against_the_rate(search: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    names = [search / f"capacity{end}" for end in (".html", ".svg", ".json")]
    flags = [flag for name in names for flag in ("-o", str(name))]
    assert report.run(parser.parse_args([str(search), *flags])) == 0
    found = orjson.loads((search / "capacity.json").read_bytes())
    printed = capsys.readouterr().out
    assert all(f"{probe['attainment']:.1%}" in printed for probe in found["probes"])
    goodput, share, _ = search_charts(found)
    assert goodput.series[0].x.tolist() == sorted(probe["rate"] for probe in found["probes"])
    assert np.all(goodput.series[0].y <= goodput.series[1].y * 1.1)  # no more is good than was asked for
    low, high = share.series[2].y[::2], share.series[2].y[1::2]
    assert np.all(low <= share.series[0].y + 1e-6) and np.all(share.series[0].y <= high + 1e-6)
    svg = ET.fromstring(names[1].read_bytes())
    bars = [line for line in svg.iter(f"{SVG}g") if line.get("stroke")]
    assert [len(bar) for bar in bars] == [len(found["probes"])]
    assert "Goodput against rate" in names[0].read_text()
    assert report.run(parser.parse_args([str(search), "-o", str(search / "capacity.doc")])) == 1
    assert "capacity.doc" in capsys.readouterr().err
