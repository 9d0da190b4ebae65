"""Writes a report in the format that the file's name asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from loadgen.record import Run
from loadgen.report.charts import run_charts
from loadgen.report.markdown import render_markdown
from loadgen.report.page import render_overview, render_page
from loadgen.report.png import render_png
from loadgen.report.table import render_csv

Summary = dict[str, Any]

WRITERS: dict[str, Callable[[Run, Summary], bytes]] = {
    ".html": lambda run, summary: render_page(summary, run).encode(),
    ".svg": lambda run, summary: render_overview(summary, run).encode(),
    ".png": lambda run, summary: render_png(run_charts(run, summary)),
    ".md": lambda run, summary: render_markdown(summary).encode(),
    ".csv": lambda run, summary: render_csv(run.results, summary).encode(),
    ".json": lambda run, summary: orjson.dumps(summary, option=orjson.OPT_INDENT_2),
}
FORMATS = ", ".join(WRITERS)


def write_report(path: Path, run: Run, summary: Summary) -> None:
    """Raises ValueError for a name that names no format, OSError if the file cannot be written."""
    if path.suffix not in WRITERS:
        raise ValueError(f"{path}: a report ends in one of {FORMATS}")
    path.write_bytes(WRITERS[path.suffix](run, summary))
