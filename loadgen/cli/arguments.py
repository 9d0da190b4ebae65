"""The flags that `octavo replay`, `load` and `capacity` share."""

from __future__ import annotations

import argparse
from typing import Any

import orjson

from loadgen.cli.values import count, number_from_0, positive_float, positive_int
from loadgen.figures.objectives import Objective
from loadgen.prompts import TokenRange
from loadgen.run.options import LagLimits, Patience, RunOptions
from loadgen.schedule.options import ScheduleOptions


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("--base-url", default="http://127.0.0.1:8000", help="(default: %(default)s)")
    group.add_argument("--model", help="default: the first of /v1/models")
    group.add_argument("--api-key", help="sent as a bearer token")
    group.add_argument(
        "--endpoint", choices=("completions", "chat"), default="completions",
        help="completions with token ids, of exact lengths, or chats with words (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--extra-body", type=_json_object, default={}, metavar="JSON", help="more fields of every request"
    )
    group.add_argument(
        "--respect-eos", action="store_true", help="let the model end early; default: ask for `ignore_eos`"
    )
    group.add_argument("--temperature", type=number_from_0, default=0.0, help="(default: %(default)s)")
    group.add_argument("--no-metrics", action="store_true", help="do not scrape /metrics once a second")
    group.add_argument("--flush-cache", metavar="PATH", help="POST to this path before the run")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sending")
    group.add_argument("--workers", type=positive_int, default=1, metavar="N", help="processes (default: 1)")
    group.add_argument("--warmup", type=count, default=0, metavar="N", help="unmeasured requests first")
    group.add_argument(
        "--max-inflight", type=positive_int, metavar="N",
        help="hold back requests above so many; the wait is counted and makes the load invalid",
    )  # fmt: skip
    group.add_argument(
        "--timeout", type=positive_float, default=600.0, metavar="S", help="of a request (default: 600)"
    )
    group.add_argument("--ttft-timeout", type=positive_float, metavar="S", help="without a first token")
    group.add_argument("--stall-timeout", type=positive_float, metavar="S", help="between two reads")
    group.add_argument(
        "--retries", type=count, default=0, metavar="N",
        help="of 429, 5xx and broken connections; latencies run from the first attempt (default: 0)",
    )  # fmt: skip
    group.add_argument("--seed", type=int, default=0, help="of arrivals and prompts (default: 0)")


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts")
    group.add_argument(
        "--token-range", type=_token_range, default="1000:30000", metavar="LOW:HIGH",
        help="token ids of prompts (default: %(default)s)",
    )  # fmt: skip
    group.add_argument("--vocab-size", type=positive_int, metavar="N", help="for a vocabulary below 30000")
    group.add_argument(
        "--nonce", type=int, metavar="N",
        help="mixed into every prompt (default: random, so that no run finds the last one's prompts cached, "
        "but 0 for traces with prefix ids)",
    )  # fmt: skip


def add_cap_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("caps on lengths")
    group.add_argument("--max-input-tokens", type=positive_int, metavar="N")
    group.add_argument("--max-output-tokens", type=positive_int, metavar="N")
    group.add_argument(
        "--max-model-len", type=positive_int, metavar="N", help="default: what the server says"
    )
    group.add_argument(
        "--cap-mode", choices=("drop", "clip"), default="drop",
        help="what to do with requests over a cap; both are counted (default: %(default)s)",
    )  # fmt: skip


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("judging and output")
    group.add_argument("--output", metavar="DIR", help="keep the run's record there; see `octavo report`")
    add_objective_argument(group)
    group.add_argument(
        "--assert", type=_share, dest="assert_attainment", metavar="SHARE",
        help="exit code 2 if fewer requests than this share meet --slo",
    )  # fmt: skip
    group.add_argument(
        "--lag-limits", type=_lag_limits, default="0.2,2,20", metavar="P50,P99,MAX",
        help="lag in ms above which the load is invalid (default: %(default)s)",
    )  # fmt: skip


def add_objective_argument(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--slo", type=_objective, action="append", default=[], metavar="[CLASS:]MEASURE=MS,...",
        help="objective in ms, such as ttft=300,tpot=40, or a preset such as mlperf-llama3.1-8b; repeatable",
    )  # fmt: skip


def run_options(arguments: argparse.Namespace) -> RunOptions:
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
    value = orjson.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text} is not a JSON object")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share in (0, 1]")
    return value


def _token_range(text: str) -> TokenRange:
    low, _, high = text.partition(":")
    return TokenRange(int(low), int(high))


def _lag_limits(text: str) -> LagLimits:
    p50, p99, largest = (positive_float(part) for part in text.split(","))
    return LagLimits(p50, p99, largest)
