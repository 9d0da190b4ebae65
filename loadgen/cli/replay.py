"""`octavo replay TRACE`: send recorded traffic."""

from __future__ import annotations

import argparse
from dataclasses import replace

from loadgen.cli import arguments as shared
from loadgen.cli.conclude import conclude, guarded
from loadgen.cli.explain import explain
from loadgen.cli.values import number_from_0, positive_float, positive_int
from loadgen.run.launch import run_load
from loadgen.run.loads import trace_load
from loadgen.schedule.options import ScheduleOptions
from loadgen.traces import read_trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    explain(
        parser,
        "Send recorded traffic to a server at its recorded times, whatever the server does, and measure the "
        "answers. The first line of the report says whether the load was the one asked for.",
        takes="TRACE",
        examples="""
            %(prog)s conversation_trace.jsonl --duration 300 --output runs/a
            %(prog)s AzureLLMInferenceTrace_conv.csv --rate-scale 0.5 --slo ttft=500,tpot=50
        """,
    )
    parser.add_argument(
        "trace", metavar="TRACE", help="a Mooncake, Azure, BurstGPT, Bailian, ServeGen or session trace"
    )
    shared.add_server_arguments(parser)
    add_trace_arguments(parser.add_argument_group("what of the trace to send"))
    shared.add_cap_arguments(parser)
    shared.add_run_arguments(parser)
    shared.add_prompt_arguments(parser)
    shared.add_output_arguments(parser)


def add_trace_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--start",
        type=number_from_0,
        default=0.0,
        metavar="S",
        help="skip so many seconds of the trace (default: 0)",
    )
    group.add_argument(
        "--duration", type=positive_float, metavar="S", help="send so many seconds of it (default: all)"
    )
    group.add_argument("--limit", type=positive_int, metavar="N", help="send so many requests at most")
    group.add_argument(
        "--time-scale", type=positive_float, default=1.0, metavar="X",
        help="multiply arrival times; 0.5 replays twice as fast (default: 1)",
    )  # fmt: skip
    group.add_argument(
        "--rate-scale", type=positive_float, default=1.0, metavar="X",
        help="send this share of the requests, or, above 1, shifted copies as well; bursts keep their shape "
        "(default: 1)",
    )  # fmt: skip
    group.add_argument(
        "--laps", type=positive_int, default=1, metavar="N", help="play that part N times (default: 1)"
    )
    group.add_argument(
        "--input-scale", type=positive_float, default=1.0, metavar="X", help="multiply prompt lengths"
    )
    group.add_argument(
        "--output-scale", type=positive_float, default=1.0, metavar="X", help="multiply output lengths"
    )
    group.add_argument(
        "--dejitter", action="store_true", help="spread requests whose recorded times were rounded to one"
    )
    group.add_argument(
        "--session-rate",
        type=positive_float,
        metavar="R",
        help="start so many sessions a second, as a Poisson process",
    )


def run(arguments: argparse.Namespace) -> int:
    """Replay a trace. Returns the exit code that the epilog of the parser tells."""

    def main() -> int:
        trace = read_trace(
            arguments.trace, start_s=arguments.start, duration_s=arguments.duration, seed=arguments.seed
        )
        for note in trace.notes:
            print(f"note: {note}")
        load = trace_load(trace, schedule_options(arguments))
        return conclude(run_load(load, shared.run_options(arguments), arguments.output), arguments)

    return guarded("replay", arguments.base_url, main)


def schedule_options(arguments: argparse.Namespace) -> ScheduleOptions:
    return replace(
        shared.cap_options(arguments),
        time_scale=arguments.time_scale,
        rate_scale=arguments.rate_scale,
        start_s=arguments.start,
        duration_s=arguments.duration,
        limit=arguments.limit,
        laps=arguments.laps,
        input_scale=arguments.input_scale,
        output_scale=arguments.output_scale,
        dejitter=arguments.dejitter,
        session_rate=arguments.session_rate,
    )
