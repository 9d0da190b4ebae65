"""`octavo report DIR`: the figures and charts of a run, from its record alone."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loadgen.cli import arguments as shared
from loadgen.cli.explain import refuse_in_one_line, tell_unjudged, tell_written
from loadgen.figures.objectives import Objective
from loadgen.figures.summary import summarize
from loadgen.record import RunError, read_run
from loadgen.report.capacity import Search, read_search, render_search_text, write_search
from loadgen.report.text import render_text
from loadgen.report.write import FORMATS, write_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show what `--output DIR` kept of a run or of a search for a capacity, and write reports."
    )
    parser.add_argument("run", metavar="DIR")
    parser.add_argument(
        "-o", "--output", action="append", default=[], metavar="FILE",
        help=f"write a report, by the name's end: {FORMATS}; repeatable",
    )  # fmt: skip
    shared.add_objective_argument(parser)
    refuse_in_one_line(parser)


def run(arguments: argparse.Namespace) -> int:
    """0, or 1 if the record cannot be read or a report not be written."""
    try:
        search = read_search(arguments.run)
        if search is not None:
            _report_search(search, arguments.output)
        else:
            _report_run(arguments)
    except BrokenPipeError:
        raise
    except (RunError, ValueError, OSError) as error:
        print(f"octavo report: {error}", file=sys.stderr)
        return 1
    return 0


def _report_run(arguments: argparse.Namespace) -> None:
    recorded = read_run(arguments.run)
    objectives = [Objective.parse(text) for text in arguments.slo] or None
    summary = summarize(recorded, objectives)
    print(render_text(summary))
    tell_unjudged(summary, arguments.slo)
    for output in arguments.output:
        write_report(Path(output), recorded, summary)
        tell_written(output)


def _report_search(search: Search, outputs: list[str]) -> None:
    print(render_search_text(search))
    for output in outputs:
        write_search(Path(output), search)
        tell_written(output)
