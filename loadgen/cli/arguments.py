"""The flags that `octavo replay`, `load` and `capacity` share."""

from __future__ import annotations

import argparse
from typing import Any

import orjson

from loadgen.cli.values import count, number_from_0, positive_float, positive_int, share, whole
from loadgen.figures.objectives import Objective
from loadgen.prompts import TokenRange
from loadgen.run.options import LagLimits, Patience, RunOptions
from loadgen.schedule.options import ScheduleOptions


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--base-url", default="http://127.0.0.1:8000", metavar="URL",
        help="any server with the OpenAI API (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--model", metavar="NAME", help="model to ask for (default: the first that the server lists)"
    )
    group.add_argument("--api-key", metavar="KEY", help="sent as a bearer token; not written down")
    group.add_argument(
        "--endpoint", choices=("completions", "chat"), default="completions",
        help="completions: prompts are token ids, so their lengths are exact; chat: prompts are words, about "
        "one a token, for servers that take no ids (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--extra-body",
        type=_json_object,
        default={},
        metavar="JSON",
        help="more fields for every request, such as '{\"top_p\": 0.9}'",
    )
    group.add_argument(
        "--respect-eos",
        action="store_true",
        help="let the model end its answers itself; without it `ignore_eos` is asked for",
    )
    group.add_argument(
        "--temperature", type=number_from_0, default=0.0, metavar="T", help="(default: %(default)s)"
    )
    group.add_argument(
        "--no-metrics", action="store_true", help="do not read the server's /metrics once a second"
    )
    group.add_argument(
        "--flush-cache", metavar="PATH",
        help="POST to this path of the server before the run, such as /reset_prefix_cache",
    )  # fmt: skip


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sending")
    group.add_argument(
        "--workers", type=positive_int, default=1, metavar="N", help="processes that send (default: 1)"
    )
    group.add_argument(
        "--warmup",
        type=count,
        default=0,
        metavar="N",
        help="send so many requests first that are not measured (default: 0)",
    )
    group.add_argument(
        "--max-inflight", type=positive_int, metavar="N",
        help="hold requests back while so many are unanswered; the wait counts as latency, and the load is "
        "called invalid for it (default: no limit)",
    )  # fmt: skip
    group.add_argument(
        "--timeout",
        type=positive_float,
        default=600.0,
        metavar="S",
        help="give a request up after so many seconds (default: 600)",
    )
    group.add_argument(
        "--ttft-timeout",
        type=positive_float,
        metavar="S",
        help="give it up after so many without a first token",
    )
    group.add_argument(
        "--stall-timeout",
        type=positive_float,
        metavar="S",
        help="give it up when so many pass between two pieces",
    )
    group.add_argument(
        "--retries", type=count, default=0, metavar="N",
        help="try again after 429, 5xx and broken connections, so often; latencies run from the first "
        "attempt (default: 0)",
    )  # fmt: skip
    group.add_argument(
        "--seed", type=whole, default=0, metavar="N", help="the same seed makes the same load (default: 0)"
    )


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts")
    group.add_argument(
        "--token-range", type=_token_range, default="1000:30000", metavar="LOW:HIGH",
        help="draw the token ids of prompts from these (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--vocab-size", type=positive_int, metavar="N", help="instead, for a vocabulary below 30000 tokens"
    )
    group.add_argument(
        "--nonce", type=whole, metavar="N",
        help="a number mixed into every prompt (default: random, so that no run finds those of an earlier "
        "one cached; 0 for traces that record which prefixes are shared)",
    )  # fmt: skip


def add_cap_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("caps on lengths")
    group.add_argument("--max-input-tokens", type=positive_int, metavar="N", help="of a prompt")
    group.add_argument("--max-output-tokens", type=positive_int, metavar="N", help="of an answer")
    group.add_argument(
        "--max-model-len",
        type=positive_int,
        metavar="N",
        help="of both together (default: what the server says)",
    )
    group.add_argument(
        "--cap-mode", choices=("drop", "clip"), default="drop",
        help="leave out requests that are longer, or shorten them; the report counts both (default: "
        "%(default)s)",
    )  # fmt: skip


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("judging and output")
    group.add_argument(
        "--output",
        metavar="DIR",
        help="keep the run's record in this new directory; `octavo report DIR` makes reports of it",
    )
    add_objective_argument(group)
    group.add_argument(
        "--assert", type=share, dest="assert_attainment", metavar="SHARE",
        help="exit code 2 if less than this share of the requests met --slo, such as 0.99",
    )  # fmt: skip
    group.add_argument(
        "--lag-limits", type=_lag_limits, default="0.2,2,20", metavar="P50,P99,MAX",
        help="the load is invalid if requests left later than so many ms after they were due (default: "
        "%(default)s)",
    )  # fmt: skip


def add_objective_argument(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--slo", type=_objective, action="append", default=[], metavar="[CLASS:]MEASURE=MS,...",
        help="what a good request takes at most, in ms, such as ttft=300,tpot=40; measures are ttft, "
        "ttft_sent, tpot, itl_p99, itl_max and e2e; or a preset, such as vidur; repeatable, for classes",
    )  # fmt: skip


def run_options(arguments: argparse.Namespace) -> RunOptions:
    """Raises ValueError for flags that do not go together."""
    if arguments.assert_attainment and not arguments.slo:
        raise ValueError("--assert needs an objective: --slo ttft=...,tpot=...")
    return RunOptions(
        base_url=arguments.base_url,
        model=arguments.model,
        api_key=arguments.api_key,
        endpoint=arguments.endpoint,
        patience=Patience(arguments.timeout, arguments.ttft_timeout, arguments.stall_timeout),
        retries=arguments.retries,
        max_inflight=arguments.max_inflight,
        stop_after_s=getattr(arguments, "stop_after", None),
        workers=arguments.workers,
        warmup=arguments.warmup,
        flush_cache=arguments.flush_cache,
        scrape_metrics=not arguments.no_metrics,
        seed=arguments.seed,
        nonce=arguments.nonce,
        token_range=TokenRange.of_vocabulary(arguments.vocab_size)
        if arguments.vocab_size
        else arguments.token_range,
        temperature=arguments.temperature,
        ignore_eos=not arguments.respect_eos,
        extra_body=arguments.extra_body,
        objectives=tuple(arguments.slo),
        lag_limits=arguments.lag_limits,
    )


def cap_options(arguments: argparse.Namespace) -> ScheduleOptions:
    """The options of a schedule that `add_cap_arguments` tells; the rest are defaults."""
    return ScheduleOptions(
        max_input_tokens=arguments.max_input_tokens,
        max_output_tokens=arguments.max_output_tokens,
        max_model_len=arguments.max_model_len,
        cap_mode=arguments.cap_mode,
        seed=arguments.seed,
    )


def _objective(text: str) -> str:
    try:
        Objective.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


def _token_range(text: str) -> TokenRange:
    low, colon, high = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} is not LOW:HIGH")
    try:
        return TokenRange(whole(low), whole(high))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _lag_limits(text: str) -> LagLimits:
    parts = text.split(",")
    if len(parts) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not P50,P99,MAX")
    return LagLimits(*map(positive_float, parts))
