"""`octavo load`: send made-up traffic, at a rate or by a number of users."""

from __future__ import annotations

import argparse
from dataclasses import replace

from loadgen.cli import arguments as shared
from loadgen.cli import exit_codes
from loadgen.cli.conclude import conclude, guarded
from loadgen.cli.values import count, number_from_0, positive_float, positive_int
from loadgen.run.launch import run_load
from loadgen.run.loads import Users, synthetic_load
from loadgen.schedule import lengths, rates
from loadgen.schedule.arrivals import PROCESSES
from loadgen.schedule.synthetic import SyntheticLoad


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Send random requests at a rate, or by users who wait for answers, and measure."
    parser.epilog = exit_codes.EPILOG
    shared.add_server_arguments(parser)
    group = parser.add_argument_group("arrivals")
    group.add_argument("--rate", default="1", metavar="R", help=f"per second (default: 1): {rates.FORMS}")
    group.add_argument(
        "--concurrency", type=positive_int, metavar="N", help="closed loop: N users instead of a rate"
    )
    group.add_argument("--think-time", type=number_from_0, default=0.0, metavar="S", help="of those users")
    group.add_argument("--ramp-up", type=number_from_0, default=0.0, metavar="S", help="until all are there")
    add_workload_arguments(parser)
    shared.add_cap_arguments(parser)
    shared.add_run_arguments(parser)
    shared.add_prompt_arguments(parser)
    shared.add_output_arguments(parser)


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    """What `octavo capacity` has as well: everything but the rate."""
    group = parser.add_argument_group("load")
    group.add_argument(
        "--arrivals", choices=PROCESSES, default="poisson", help="gaps between requests (default: poisson)"
    )
    group.add_argument(
        "--burstiness", type=positive_float, default=1.0, metavar="SHAPE",
        help="shape of gamma and Weibull gaps: below 1 in bursts, above 1 even (default: 1)",
    )  # fmt: skip
    group.add_argument("--requests", type=positive_int, metavar="N", help="how many")
    group.add_argument("--duration", type=positive_float, metavar="S", help="for how long")
    group.add_argument(
        "--input-tokens", default="256", metavar="FORM", help=f"of prompts (default: 256): {lengths.FORMS}"
    )
    group.add_argument("--output-tokens", default="64", metavar="FORM", help="of outputs (default: 64)")
    group.add_argument(
        "--prefix-tokens", type=count, default=0, metavar="N", help="shared at the start, beside those above"
    )
    group.add_argument("--prefix-groups", type=positive_int, default=1, metavar="N", help="(default: 1)")


def run(arguments: argparse.Namespace) -> int:
    """Send a synthetic load. Returns the exit code that the epilog of the parser tells."""

    def main() -> int:
        load = synthetic_load(
            workload(arguments, arguments.rate), shared.cap_options(arguments), _users(arguments)
        )
        options = shared.run_options(arguments)
        if arguments.concurrency:
            options = replace(options, stop_after_s=arguments.duration)
        return conclude(run_load(load, options, arguments.output), arguments)

    return guarded("load", arguments.base_url, main)


def workload(arguments: argparse.Namespace, rate: str) -> SyntheticLoad:
    return SyntheticLoad(
        process=arguments.arrivals,
        rate=rate,
        burstiness=arguments.burstiness,
        requests=arguments.requests,
        duration_s=arguments.duration,
        input_tokens=arguments.input_tokens,
        output_tokens=arguments.output_tokens,
        prefix_tokens=arguments.prefix_tokens,
        prefix_groups=arguments.prefix_groups,
        seed=arguments.seed,
    )


def _users(arguments: argparse.Namespace) -> Users | None:
    if arguments.concurrency is None:
        return None
    return Users(arguments.concurrency, arguments.think_time, arguments.ramp_up)
