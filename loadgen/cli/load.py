"""`octavo load`: send made-up traffic, at a rate or by a number of users."""

from __future__ import annotations

import argparse
from dataclasses import replace

from loadgen.cli import arguments as shared
from loadgen.cli.conclude import conclude, guarded
from loadgen.cli.explain import explain
from loadgen.cli.values import count, number_from_0, positive_float, positive_int
from loadgen.run.launch import run_load
from loadgen.run.loads import Users, synthetic_load
from loadgen.schedule import lengths, rates
from loadgen.schedule.arrivals import PROCESSES
from loadgen.schedule.synthetic import SyntheticLoad

DEFAULT_RATE = "1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    explain(
        parser,
        "Send random requests to a server at a rate, whatever the server does, or from users who wait for "
        "their answers, and measure them. The first line of the report says whether the load was the one "
        "asked for.",
        examples="""
            %(prog)s --rate 20 --duration 60 --input-tokens lognormal:400:1
            %(prog)s --rate linear:1:40 --duration 120 --slo ttft=500,tpot=50 --output runs/ramp
            %(prog)s --concurrency 16 --think-time 0.5 --requests 500
        """,
    )
    shared.add_server_arguments(parser)
    group = parser.add_argument_group("arrivals")
    group.add_argument(
        "--rate",
        metavar="R",
        help=f"requests per second (default: {DEFAULT_RATE}), as {rates.FORMS}; ramps and steps take "
        "--duration, or a minute",
    )
    group.add_argument(
        "--concurrency",
        type=positive_int,
        metavar="N",
        help="instead of a rate, N users who wait for each answer",
    )
    group.add_argument(
        "--think-time",
        type=number_from_0,
        default=0.0,
        metavar="S",
        help="seconds between an answer and their next request",
    )
    group.add_argument(
        "--ramp-up", type=number_from_0, default=0.0, metavar="S", help="seconds until all users are there"
    )
    add_workload_arguments(parser)
    shared.add_cap_arguments(parser)
    shared.add_run_arguments(parser)
    shared.add_prompt_arguments(parser)
    shared.add_output_arguments(parser)


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    """What `octavo capacity` has as well: everything but the rate."""
    group = parser.add_argument_group("load")
    group.add_argument(
        "--arrivals",
        choices=PROCESSES,
        default="poisson",
        help="how the gaps between requests vary (default: poisson)",
    )
    group.add_argument(
        "--burstiness", type=positive_float, default=1.0, metavar="SHAPE",
        help="shape of gamma and Weibull gaps: below 1 in bursts, above 1 even (default: 1)",
    )  # fmt: skip
    group.add_argument("--requests", type=positive_int, metavar="N", help="send so many requests")
    group.add_argument("--duration", type=positive_float, metavar="S", help="... or for so many seconds")
    group.add_argument(
        "--input-tokens",
        default="256",
        metavar="FORM",
        help=f"length of prompts (default: 256), as {lengths.FORMS}",
    )
    group.add_argument(
        "--output-tokens",
        default="64",
        metavar="FORM",
        help="length of answers (default: 64), in the same forms",
    )
    group.add_argument(
        "--prefix-tokens",
        type=count,
        default=0,
        metavar="N",
        help="begin prompts with so many more that requests share",
    )
    group.add_argument(
        "--prefix-groups",
        type=positive_int,
        default=1,
        metavar="N",
        help="different shared beginnings (default: 1)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Send a synthetic load. Returns the exit code that the epilog of the parser tells."""

    def main() -> int:
        load = synthetic_load(
            workload(arguments, arguments.rate or DEFAULT_RATE),
            shared.cap_options(arguments),
            _users(arguments),
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
    """None for a load at a rate. Raises ValueError for flags that do not go together."""
    if arguments.concurrency is None:
        if arguments.think_time or arguments.ramp_up:
            raise ValueError("--think-time and --ramp-up are of users: --concurrency N")
        return None
    if arguments.rate is not None:
        raise ValueError("give --rate or --concurrency: users come when they are answered, and at no rate")
    return Users(arguments.concurrency, arguments.think_time, arguments.ramp_up)
