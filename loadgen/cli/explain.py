"""What the commands tell a user who does not know them yet."""

from __future__ import annotations

import argparse
import sys
import textwrap
from typing import Any, NoReturn

from loadgen.cli import exit_codes

WIDTH = 80


def explain(
    parser: argparse.ArgumentParser, description: str, *, takes: str = "", examples: str = ""
) -> None:
    """Give `--help` a usage line that can be read, a description and examples."""
    parser.usage = f"%(prog)s {takes} [options]".replace("  ", " ")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = textwrap.fill(textwrap.dedent(description).strip(), WIDTH)
    shown = "examples:\n" + textwrap.indent(textwrap.dedent(examples).strip(), "  ") + "\n\n"
    parser.epilog = (shown if examples else "") + textwrap.fill(exit_codes.EPILOG, WIDTH)
    refuse_in_one_line(parser)


def refuse_in_one_line(parser: argparse.ArgumentParser) -> None:
    """Wrong flags end with the exit code that the commands have for that, not with argparse's 2."""

    def fail(message: str) -> NoReturn:
        parser.exit(exit_codes.USAGE, f"{parser.prog}: {message}; see {parser.prog} --help\n")

    parser.error = fail  # type: ignore[method-assign]


def tell_kept(directory: str) -> None:
    """Where a run's record is, and what to do with it. Beside the figures, which go to stdout."""
    print(f"kept in {directory}; octavo report {directory} -o report.html draws it", file=sys.stderr)


def tell_unjudged(summary: dict[str, Any], objectives: list[str]) -> None:
    """An objective for a class that no request is of is not in the figures."""
    if objectives and summary["goodput"] is None:
        classes = ", ".join(filter(None, summary["classes"])) or "none"
        print(f"no request is of a class that --slo names; the run's classes: {classes}", file=sys.stderr)


def tell_written(file: str) -> None:
    print(f"wrote {file}", file=sys.stderr)
