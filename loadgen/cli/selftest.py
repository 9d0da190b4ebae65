"""`octavo loadgen-selftest`: measure a server that knows the truth, and say how far off it is."""

from __future__ import annotations

import argparse

from loadgen.cli import exit_codes
from loadgen.cli.explain import refuse_in_one_line
from loadgen.cli.values import positive_float
from loadgen.selftest import bias, traps


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check the load generator on this machine against a server that knows the truth: three cases in "
        "which others report wrong numbers, and the error of TTFT and inter-token latency under load."
    )
    refuse_in_one_line(parser)
    parser.epilog = "exit code: 0 all is well, 3 a count or verdict is wrong, or, with --strict, a time"
    parser.add_argument("--rate", type=positive_float, default=300.0, metavar="R", help="(default: 300)")
    parser.add_argument("--duration", type=positive_float, default=10.0, metavar="S", help="(default: 10)")
    parser.add_argument(
        "--strict", action="store_true", help="judge the times as well; the machine must be quiet"
    )


def run(arguments: argparse.Namespace) -> int:
    """Returns the exit code that the epilog of the parser tells."""
    failed = False
    for check in traps.check_all():
        print(f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {check.detail}", flush=True)
        failed |= not check.ok
    found = bias.measure_bias(arguments.rate, arguments.duration)
    print(found.render())
    failed |= not found.complete or (arguments.strict and not found.within_limits)
    return exit_codes.LOAD_INVALID if failed else exit_codes.VALID
