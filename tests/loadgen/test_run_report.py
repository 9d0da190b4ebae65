"""Reports: readable from partial logs, self-contained, refused where the file is no log."""

from __future__ import annotations

import argparse
import csv
import re
import xml.etree.ElementTree as ET
from array import array
from itertools import accumulate
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cli import report as report_command
from loadgen.figures.summary import percentiles, summarize
from loadgen.mock import MockServer, Script
from loadgen.record import read_run
from loadgen.record.chunks import decode_chunks, encode_chunks
from loadgen.record.reader import read_schedule
from loadgen.record.writer import prepare_directory
from loadgen.report.chart import Chart, Series
from loadgen.report.svg import draw
from loadgen.report.text import render_text
from loadgen.report.write import WRITERS
from tests.support.examples import examples

from .conftest import Replayer

SVG = "{http://www.w3.org/2000/svg}"


def report(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    report_command.add_arguments(parser)
    return report_command.run(parser.parse_args(arguments))


@pytest.fixture
def record(replay: Replayer, tmp_path: Path) -> Path:
    with MockServer(Script(ttft_s=0.01, itl_s=0.001, behaviour="429", misbehave_every=5)) as server:
        replay(server, [(4 * i, 10, 5) for i in range(25)])
    return tmp_path / "run"


def test_every_format_is_written_and_needs_no_network(record: Path, tmp_path: Path) -> None:
    outputs = [tmp_path / f"report{suffix}" for suffix in WRITERS]
    flags = [flag for output in outputs for flag in ("-o", str(output))]
    assert report(str(record), "--slo", "ttft=5000", *flags) == 0
    html = (tmp_path / "report.html").read_text()
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ET.fromstring(svg)
    assert "http_429" in html
    assert not re.findall(r"(?:src|href)=", html)
    table = list(csv.DictReader((tmp_path / "report.csv").open()))
    assert len(table) == 25 and sum(row["failure"] == "http_429" for row in table) == 5
    assert sum(row["objective_met"] == "True" for row in table) == 20
    assert "| TTFT, from due time |" in (tmp_path / "report.md").read_text()
    assert orjson.loads((tmp_path / "report.json").read_bytes())["goodput"]["attainment"] == 0.8
    dots = ET.parse(tmp_path / "report.svg").findall(f".//{SVG}g/{SVG}circle")
    assert len(dots) == 25  # each request is shown, failed or not


def test_an_unknown_format_is_refused(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(str(record), "-o", "report.pdf") == 1
    assert ".html" in capsys.readouterr().err


def test_a_killed_run_is_reported(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = record / "events.jsonl"
    lines = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join(lines[:10]) + lines[10][:30])
    assert report(str(record)) == 0
    out = capsys.readouterr().out
    assert "the run was killed" in out and "9 sent" in out and "16 not sent" in out


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("env.json", b""),
        ("env.json", b"{}"),
        ("env.json", b'{"schema": "other"}'),
        ("events.jsonl", b'{"schema": "other"}\n'),
        ("events.jsonl", b"no json\n{}\n"),
    ],
)
def test_other_files_are_refused_by_name(
    record: Path, capsys: pytest.CaptureFixture[str], file: str, content: bytes
) -> None:
    (record / file).write_bytes(content)
    assert report(str(record)) == 1
    assert file in capsys.readouterr().err


def test_a_missing_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(str(tmp_path / "nothing")) == 1
    assert "nothing" in capsys.readouterr().err


def test_broken_lines_are_refused_by_number(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = record / "events.jsonl"
    lines = events.read_bytes().splitlines()
    events.write_bytes(b"\n".join([*lines[:3], b"{broken", *lines[3:]]))
    assert report(str(record)) == 1
    assert "line 4" in capsys.readouterr().err


@pytest.mark.parametrize(("ideal", "warm"), [(None, True), (0.3, True), (0.5, False)])
def test_more_hits_than_an_unlimited_cache_has_are_a_warning(
    ideal: float | None, warm: bool, record: Path
) -> None:
    run = read_run(record)
    run.env["ideal_cache_hit_rate"] = ideal
    for result in run.results:
        result.cached_tokens = 5  # of 10
    summary = summarize(run)
    assert summary["tokens"]["warm_cache"] == warm
    assert ("knew prompts of this run" in render_text(summary)) == warm


def test_failures_and_intervals_stand_beside_the_percentiles(record: Path) -> None:
    lines = render_text(summarize(read_run(record))).splitlines()  # 5 of 25 failed
    failures = lines[lines.index("with failed requests as endless:") + 1].split()
    assert failures[:4] == ["TTFT,", "from", "due", "time"] and failures[-3:] == ["endless", "endless", "25"]
    assert any(line.startswith("95 % intervals") for line in lines)


def test_an_objective_for_nobody_is_told(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(str(record), "--slo", "chat:ttft=300") == 0
    assert "no request is of a class that --slo names" in capsys.readouterr().err


def test_first_content_is_shown_where_it_is_not_the_first_token(record: Path) -> None:
    run = read_run(record)
    assert "first content" not in render_text(summarize(run))
    for result in run.results:
        result.first_content_ns = result.last_token_ns
    assert "first content, from due" in render_text(summarize(run))


def test_a_run_is_not_overwritten(record: Path) -> None:
    with pytest.raises(ValueError, match="already"):
        prepare_directory(record)


def test_what_was_written_is_read_back(record: Path) -> None:
    run = read_run(record)
    assert [result.index for result in run.results] == list(range(25))
    schedule = read_schedule(record)
    assert [r.output_tokens for r in schedule.requests] == [r.output_tokens_asked for r in run.results]
    assert [r.intended_ns for r in schedule.requests] == [r.intended_ns for r in run.results]


CHUNK = st.tuples(st.integers(0, 2**40), st.integers(0, 300), st.integers(0, 2**31))


@examples(100)
@given(st.lists(st.lists(CHUNK, max_size=40), max_size=4))
def test_chunks_survive_their_encoding(requests: list[list[tuple[int, int, int]]]) -> None:
    columns = []
    for chunks in requests:
        times, tokens, sizes = ([chunk[i] for chunk in chunks] for i in range(3))
        columns.append((array("q", accumulate(times)), array("q", tokens), array("q", sizes)))
    data, places = encode_chunks(columns)
    for chunks, wanted, place in zip(requests, columns, places, strict=True):
        assert decode_chunks(b"..." + data + b"more", 3 + place, len(chunks)) == wanted
    if requests and requests[-1]:
        assert decode_chunks(data[:-1], places[-1], len(requests[-1])) is None


@pytest.mark.parametrize("values", [[], [0.0], [5.0], [1e-9, 1e9], [0.0, np.inf, np.nan, 3.0]])
@pytest.mark.parametrize("log_scale", [False, True])
def test_charts_of_awkward_values_are_drawn_within_the_frame(values: list[float], log_scale: bool) -> None:
    data = np.array(values)
    svg = ET.fromstring(
        draw(Chart("t", "x", "y", [Series("s", data, data, "dots")], log_x=log_scale, log_y=log_scale))
    )
    for circle in svg.iter("{http://www.w3.org/2000/svg}circle"):
        assert 0 <= float(circle.attrib["cx"]) <= 480 and 0 <= float(circle.attrib["cy"]) <= 300


def test_percentiles() -> None:
    row = percentiles([None, *range(1_000_000, 101_000_000, 1_000_000)])
    expected = {"n": 100, "mean": 50.5, "p50": 50.5, "p90": 90.1, "p99": 99.01, "max": 100.0}
    assert row == pytest.approx(expected)
    assert percentiles([])["p50"] is None
