"""`octavo report DIR`: the figures and charts of a run, from its record alone."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loadgen.cli import arguments as shared
from loadgen.figures.objectives import Objective
from loadgen.figures.summary import summarize
from loadgen.record import RunError, read_run
from loadgen.report.text import render_text
from loadgen.report.write import FORMATS, write_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show the figures of a run that `--output DIR` kept, and write reports of it."
    parser.add_argument("run", metavar="DIR")
    parser.add_argument(
        "-o", "--output", action="append", default=[], metavar="FILE",
        help=f"write a report, by the name's end: {FORMATS}; repeatable",
    )  # fmt: skip
    shared.add_objective_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """0, or 1 if the record cannot be read or a report not be written."""
    try:
        recorded = read_run(arguments.run)
        objectives = [Objective.parse(text) for text in arguments.slo] or None
        summary = summarize(recorded, objectives)
        print(render_text(summary))
        for output in arguments.output:
            write_report(Path(output), recorded, summary)
    except (RunError, ValueError, OSError) as error:
        print(f"octavo report: {error}", file=sys.stderr)
        return 1
    return 0
