"""`octavo report RUN.jsonl`: the figures and charts of a run, from its log alone."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loadgen.report.page import render_overview, render_page
from loadgen.report.text import render_text
from loadgen.runlog import RunLogError, read_run_log
from loadgen.summary import summarize


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show the figures of a run that `octavo replay --output` logged; draw its charts."
    parser.add_argument("log", metavar="RUN.jsonl")
    parser.add_argument("-o", "--output", metavar="FILE", help="a report (.html) or two charts (.svg)")


def run(arguments: argparse.Namespace) -> int:
    """0, or 1 if the log cannot be read or the report not be written."""
    try:
        header, results, end = read_run_log(arguments.log)
        summary = summarize(header, results, end)
        print(render_text(summary))
        if arguments.output:
            drawing = arguments.output.endswith(".svg")
            page = render_overview(results) if drawing else render_page(summary, results)
            Path(arguments.output).write_text(page, encoding="utf-8")
    except (RunLogError, OSError) as error:
        print(f"octavo report: {error}", file=sys.stderr)
        return 1
    return 0
