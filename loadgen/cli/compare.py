"""`octavo compare DIR DIR ...`: runs side by side, live or simulated."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import orjson

from loadgen.cli.explain import refuse_in_one_line, tell_written
from loadgen.figures.compare import compare
from loadgen.figures.load_difference import load_difference
from loadgen.figures.summary import summarize
from loadgen.record import RunError, read_run
from loadgen.record.reader import read_schedule
from loadgen.report.comparison import render_comparison_page, render_comparison_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Compare runs with the first one; the interval of each change is a 95 % one."
    parser.add_argument("runs", metavar="DIR", nargs="+", help="two runs or more")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the comparison (.html or .json)")
    refuse_in_one_line(parser)


def run(arguments: argparse.Namespace) -> int:
    """0, or 1 if a record cannot be read or the comparison not be written."""
    try:
        if len(arguments.runs) < 2:
            raise ValueError("give two runs or more")
        runs = [read_run(path) for path in arguments.runs]
        summaries = [summarize(run) for run in runs]
        schedules = [read_schedule(path) for path in arguments.runs]
        changes = [
            compare(runs[0], other) | {"load": load_difference(runs[0], schedules[0], other, schedule)}
            for other, schedule in zip(runs[1:], schedules[1:], strict=True)
        ]
        print(render_comparison_text(runs, summaries, changes))
        if arguments.output is not None:
            _write(Path(arguments.output), render_comparison_page(runs, summaries, changes), changes)
            tell_written(arguments.output)
    except BrokenPipeError:
        raise
    except (RunError, ValueError, OSError) as error:
        print(f"octavo compare: {error}", file=sys.stderr)
        return 1
    return 0


def _write(path: Path, page: str, changes: list[dict[str, object]]) -> None:
    if path.suffix == ".html":
        path.write_text(page, encoding="utf-8")
    elif path.suffix == ".json":
        path.write_bytes(orjson.dumps(changes, option=orjson.OPT_INDENT_2))
    else:
        raise ValueError(f"{path}: a comparison ends in .html or .json")
