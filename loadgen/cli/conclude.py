"""Runs a load for a command: prints its figures, and turns what happened into an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from loadgen.cli import exit_codes
from loadgen.cli.explain import tell_kept, tell_unjudged
from loadgen.report.text import render_text
from loadgen.run.launch import Outcome
from loadgen.run.preflight import ServerUnusableError
from loadgen.run.workers import WorkerError
from loadgen.traces import TraceError


def guarded(name: str, base_url: str, main: Callable[[], int]) -> int:
    """Run `main`; what goes wrong is told in one line."""
    try:
        return main()
    except BrokenPipeError:
        raise
    except (TraceError, ValueError) as error:
        print(f"octavo {name}: {error}", file=sys.stderr)
        return exit_codes.USAGE
    except (ServerUnusableError, OSError) as error:
        print(f"octavo {name}: {base_url}: {error}", file=sys.stderr)
        return exit_codes.SERVER_UNUSABLE
    except WorkerError as error:
        print(f"octavo {name}: {error}", file=sys.stderr)
        return exit_codes.LOAD_INVALID
    except KeyboardInterrupt:  # before the first request; later ones end in a report
        return exit_codes.INTERRUPTED


def conclude(outcome: Outcome, arguments: argparse.Namespace) -> int:
    """Print the figures; the exit code follows from them."""
    summary = outcome.summary
    print(render_text(summary))
    tell_unjudged(summary, arguments.slo)
    if arguments.output:
        tell_kept(arguments.output)
    if summary["client"]["interrupted"]:
        return exit_codes.INTERRUPTED
    if not summary["requests"]["succeeded"]:
        print("every request failed", file=sys.stderr)
        return exit_codes.SERVER_UNUSABLE
    if not summary["verdict"]["valid"]:
        return exit_codes.LOAD_INVALID
    goodput = summary["goodput"]
    if arguments.assert_attainment and (not goodput or goodput["attainment"] < arguments.assert_attainment):
        return exit_codes.OBJECTIVE_MISSED
    return exit_codes.VALID
