"""The report of a search by `octavo capacity`: what became of the objective as the rate rose."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from loadgen.record import files
from loadgen.report.chart import Chart, Series
from loadgen.report.page import html_page
from loadgen.report.png import render_png
from loadgen.report.svg import WIDTH, draw, sheet
from loadgen.report.text import number

Search = dict[str, Any]  # what `capacity.json` holds

COLUMNS = {
    "rate": "req/s",
    "attainment": "good",
    "good_requests_per_s": "good req/s",
    "good_tokens_per_s": "good tok/s",
    "ttft_p50_ms": "TTFT p50 ms",
    "ttft_p99_ms": "TTFT p99 ms",
    "tpot_p99_ms": "TPOT p99 ms",
}


def read_search(directory: str | Path) -> Search | None:
    """The search that a directory holds; None if it is of something else. Raises ValueError."""
    path = Path(directory) / files.CAPACITY
    if not path.exists():
        return None
    search = orjson.loads(path.read_bytes())
    if not isinstance(search, dict) or search.get("schema") != files.CAPACITY_SCHEMA:
        raise ValueError(f"{path}: not a search for a capacity ({files.CAPACITY_SCHEMA})")
    return search


def verdict(search: Search) -> str:
    """What was found, in one line."""
    by_rate = {probe["rate"]: probe for probe in search["probes"]}
    capacity, too_much = search["capacity_rps"], search["too_much_rps"]
    if capacity is None:
        return f"no rate tried was low enough: at {search['probes'][-1]['rate']:.3g} req/s it was missed"
    at_least = "" if too_much else "at least "
    above = f"; {too_much:.3g} req/s is too much" if too_much else "; no rate tried was too much"
    return f"capacity {at_least}{capacity:.3g} req/s with {by_rate[capacity]['attainment']:.1%} good{above}"


def render_search_text(search: Search) -> str:
    """A line for each probe, by rate, and the verdict."""
    rows = [list(COLUMNS.values())]
    for probe in _by_rate(search):
        row = {name: number(probe[name]) for name in COLUMNS} | {"attainment": f"{probe['attainment']:.1%}"}
        rows.append(list(row.values()))
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    wanted = f"{search['target']:.0%} of the requests are to meet {', '.join(search['objectives'])}"
    return "\n".join([wanted, *lines, verdict(search)])


def search_charts(search: Search) -> list[Chart]:
    """Goodput, the share of good requests, and latencies, against the rate."""
    probes = _by_rate(search)
    rates = np.array([probe["rate"] for probe in probes], dtype=float)
    goodput = _column(probes, "good_requests_per_s")
    share = _column(probes, "attainment")
    intervals = np.array([probe["attainment_95"] for probe in probes], dtype=float).flatten()
    ttft = [
        Series(name, rates, _column(probes, f"ttft_{name}_ms"), "line and dots") for name in ("p50", "p99")
    ]
    shares = [
        Series("met the objective", rates, share, "line and dots"),
        Series(f"target {search['target']:.0%}", rates, np.full(len(rates), search["target"])),
        Series("95 % interval", np.repeat(rates, 2), intervals, "bars"),
    ]
    goodputs = [
        Series("met the objective", rates, goodput, "line and dots"),
        Series("asked for", rates, rates),
    ]
    x_label = "requests/s asked for"
    return [
        Chart("Goodput against rate", x_label, "requests/s", goodputs),
        Chart("Share of requests that met the objective", x_label, "share", shares),
        Chart("Time to first token, from due time", x_label, "ms", ttft, log_y=True),
    ]


def render_search_page(search: Search) -> str:
    charts = "\n".join(draw(chart) for chart in search_charts(search))
    title = f"The rate at which {search['target']:.0%} of the requests meet {', '.join(search['objectives'])}"
    return html_page(
        title,
        f"""<h1>{escape(title)}</h1>
<p><b>{escape(verdict(search))}</b></p>
<div class="charts">{charts}</div>
<h2>All runs</h2>
<pre>{escape(render_search_text(search))}</pre>""",
    )


def _sheet(search: Search) -> str:
    charts = [draw(chart, (place * WIDTH, 0)) for place, chart in enumerate(search_charts(search)[:2])]
    return sheet(charts, columns=len(charts))


WRITERS: dict[str, Callable[[Search], bytes]] = {
    ".html": lambda search: render_search_page(search).encode(),
    ".svg": lambda search: _sheet(search).encode(),
    ".png": lambda search: render_png(search_charts(search)),
    ".json": lambda search: orjson.dumps(search, option=orjson.OPT_INDENT_2),
}


def write_search(path: Path, search: Search) -> None:
    """Raises ValueError for a name that names no format, OSError if the file cannot be written."""
    if path.suffix not in WRITERS:
        raise ValueError(f"{path}: the report of a search ends in one of {', '.join(WRITERS)}")
    path.write_bytes(WRITERS[path.suffix](search))


def _by_rate(search: Search) -> list[dict[str, Any]]:
    return sorted(search["probes"], key=lambda probe: float(probe["rate"]))


def _column(probes: list[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([np.nan if probe[name] is None else probe[name] for probe in probes], dtype=float)
