"""`octavo capacity`: the highest rate at which enough requests meet their objective."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from loadgen.cli import arguments as shared
from loadgen.cli import exit_codes
from loadgen.cli.conclude import guarded
from loadgen.cli.explain import explain, tell_kept
from loadgen.cli.load import add_workload_arguments, workload
from loadgen.cli.values import positive_float, positive_int, share
from loadgen.record import files
from loadgen.report.capacity import verdict
from loadgen.report.text import number
from loadgen.run.bracket import Bracket, Probe
from loadgen.run.launch import run_load
from loadgen.run.loads import synthetic_load
from loadgen.run.options import RunOptions

DEFAULT_REQUESTS_PER_PROBE = 500
TRIES_PER_PROBE = 2  # of a load that turned out invalid


def add_arguments(parser: argparse.ArgumentParser) -> None:
    explain(
        parser,
        "Find the highest rate of requests at which a share of them meets an objective: runs at rising rates "
        "until one fails, then between the last two, until the limit is known.",
        takes="--slo MEASURE=MS,...",
        examples="""
            %(prog)s --slo ttft=500,tpot=50 --input-tokens 512 --output-tokens 128 --output runs/capacity
        """,
    )
    shared.add_server_arguments(parser)
    group = parser.add_argument_group("search")
    group.add_argument(
        "--target", type=share, default=0.9, metavar="SHARE", help="that is to meet --slo (default: 0.9)"
    )
    group.add_argument(
        "--from-rate",
        type=positive_float,
        default=1.0,
        metavar="R",
        help="requests per second of the first run (default: 1)",
    )
    group.add_argument(
        "--probes", type=positive_int, default=8, metavar="N", help="runs at most (default: 8)"
    )
    group.add_argument(
        "--precision",
        type=positive_float,
        default=0.05,
        metavar="SHARE",
        help="how exactly to find the limit (default: 0.05)",
    )
    add_workload_arguments(parser)
    shared.add_cap_arguments(parser)
    shared.add_run_arguments(parser)
    shared.add_prompt_arguments(parser)
    shared.add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Probe rates until the limit is known. Returns the exit code that the epilog of the parser tells."""

    def main() -> int:
        if not arguments.slo:
            raise ValueError("say what is good enough: --slo ttft=...,tpot=...")
        if arguments.requests is None and arguments.duration is None:
            arguments.requests = DEFAULT_REQUESTS_PER_PROBE
        bracket = Bracket(arguments.from_rate, arguments.target, arguments.precision)
        options = shared.run_options(arguments)
        try:
            sent_all = _search(arguments, options, bracket)
        finally:  # an interrupted search has found something, too
            if bracket.probes:
                _conclude(arguments, bracket)
        if not sent_all:
            return exit_codes.LOAD_INVALID
        return exit_codes.VALID if bracket.best else exit_codes.OBJECTIVE_MISSED

    return guarded("capacity", arguments.base_url, main)


def _search(arguments: argparse.Namespace, options: RunOptions, bracket: Bracket) -> bool:
    """Add probes to the bracket. False if the load of one could not be sent, which ends the search."""
    while len(bracket.probes) < arguments.probes and (rate := bracket.next_rate()) is not None:
        probe = _probe(arguments, options, rate, len(bracket.probes))
        if probe is None:
            print(f"{number(rate, 8)} req/s could not be sent as asked for: the search ends", file=sys.stderr)
            return False
        bracket.add(probe)
    return True


def _probe(arguments: argparse.Namespace, options: RunOptions, rate: float, place: int) -> Probe | None:
    """One run at a rate; None if its load was invalid each time. A run ends only when every request has, so
    the server is drained before the next."""
    for attempt in range(TRIES_PER_PROBE):
        output = None
        if arguments.output:
            output = str(Path(arguments.output) / f"probe-{place}-{rate:.3g}rps{'-again' * attempt}")
        synthetic = replace(workload(arguments, f"{rate:.6g}"), seed=arguments.seed + place)
        load = synthetic_load(synthetic, shared.cap_options(arguments))
        summary = run_load(load, replace(options, seed=arguments.seed + place), output).summary
        if summary["client"]["interrupted"]:
            raise KeyboardInterrupt
        probe = _probe_of(rate, summary)
        print(
            f"{number(rate, 8)} req/s: {probe.attainment:.1%} good, TTFT p99 {number(probe.ttft_p99_ms)} ms, "
            f"{summary['verdict']['status']}",
            flush=True,
        )
        if summary["verdict"]["valid"]:
            return probe
        print("\n".join(f"  because {cause}" for cause in summary["verdict"]["causes"]), file=sys.stderr)
    return None


def _probe_of(rate: float, summary: dict[str, Any]) -> Probe:
    goodput, latency = summary["goodput"], summary["latency_ms"]
    return Probe(
        rate,
        goodput["attainment"],
        goodput["attainment_95"],
        good_tokens_per_s=goodput["good_tokens_per_s"],
        good_requests_per_s=goodput["good_requests_per_s"],
        ttft_p50_ms=latency["ttft_from_due"]["p50"],
        ttft_p99_ms=latency["ttft_from_due"]["p99"],
        tpot_p99_ms=latency["tpot"]["p99"],
    )


def _conclude(arguments: argparse.Namespace, bracket: Bracket) -> None:
    best, failed = bracket.best, bracket.lowest_failed
    search: dict[str, Any] = {
        "schema": files.CAPACITY_SCHEMA,
        "target": arguments.target,
        "objectives": arguments.slo,
        "capacity_rps": best.rate if best else None,
        "too_much_rps": failed.rate if failed else None,
        "probes": [probe.to_row() for probe in bracket.probes],
    }
    if arguments.output:
        path = Path(arguments.output) / files.CAPACITY
        path.write_bytes(orjson.dumps(search, option=orjson.OPT_INDENT_2))
    print(verdict(search))
    if arguments.output:
        tell_kept(arguments.output)
