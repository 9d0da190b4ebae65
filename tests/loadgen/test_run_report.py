"""Reports: readable from partial logs, self-contained, refused where the file is no log."""

from __future__ import annotations

import argparse
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import orjson
import pytest

from loadgen.mock_server import MockServer, Script
from loadgen.report import cli
from loadgen.report.svg import Series, chart
from loadgen.runlog import read_run_log
from loadgen.summary import percentiles

from .conftest import Replayer


def report(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return cli.run(parser.parse_args(arguments))


@pytest.fixture
def log(replay: Replayer, tmp_path: Path) -> Path:
    with MockServer(Script(ttft_s=0.01, itl_s=0.001, behaviour="429", misbehave_every=5)) as server:
        replay(server, [(4 * i, 10, 5) for i in range(25)])
    return tmp_path / "run.jsonl"


def test_html_and_svg_are_well_formed_and_need_no_network(log: Path, tmp_path: Path) -> None:
    page, drawing = tmp_path / "report.html", tmp_path / "report.svg"
    assert report(str(log), "-o", str(page)) == 0
    assert report(str(log), "-o", str(drawing)) == 0
    dots = ET.parse(drawing).findall(".//{http://www.w3.org/2000/svg}g/{http://www.w3.org/2000/svg}circle")
    assert len(dots) == 25  # each request is shown, failed or not
    html = page.read_text()
    charts = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(charts) == 5
    for svg in charts:
        ET.fromstring(svg)
    assert "5 x http_429" in html
    assert not re.findall(r"(?:src|href)=", html)


def test_a_killed_run_is_reported(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:10]) + lines[10][:30])
    assert report(str(log)) == 0
    out = capsys.readouterr().out
    assert "the run was killed" in out and "9 sent" in out and "16 not sent" in out


@pytest.mark.parametrize("content", [b"", b"{}\n", b"no json\n{}\n", b'{"schema": "other"}\n'])
def test_other_files_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    path = tmp_path / "thing.jsonl"
    path.write_bytes(content)
    assert report(str(path)) == 1
    assert "thing.jsonl" in capsys.readouterr().err


def test_broken_lines_are_refused_by_number(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = log.read_bytes().splitlines()
    log.write_bytes(b"\n".join([*lines[:3], b"{broken", *lines[3:]]))
    assert report(str(log)) == 1
    assert "line 4" in capsys.readouterr().err


def test_log_lines_are_one_a_request(log: Path) -> None:
    rows = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    assert [row["type"] for row in rows] == ["run", *["request"] * 25, "end"]
    assert [result.index for result in read_run_log(log)[1]] == list(range(25))


@pytest.mark.parametrize("values", [[], [0.0], [5.0], [1e-9, 1e9], [0.0, np.inf, np.nan, 3.0]])
@pytest.mark.parametrize("log_scale", [False, True])
def test_charts_of_awkward_values_are_drawn_within_the_frame(values: list[float], log_scale: bool) -> None:
    data = np.array(values)
    svg = ET.fromstring(
        chart("t", "x", "y", [Series("s", data, data, "dots")], log_x=log_scale, log_y=log_scale)
    )
    for circle in svg.iter("{http://www.w3.org/2000/svg}circle"):
        assert 0 <= float(circle.attrib["cx"]) <= 480 and 0 <= float(circle.attrib["cy"]) <= 300


def test_percentiles() -> None:
    row = percentiles([None, *range(1_000_000, 101_000_000, 1_000_000)])
    expected = {"n": 100, "mean": 50.5, "p50": 50.5, "p90": 90.1, "p99": 99.01, "max": 100.0}
    assert row == pytest.approx(expected)
    assert percentiles([])["p50"] is None
