"""The flags of `octavo replay`."""

from __future__ import annotations

import argparse

from loadgen.prompts import TokenRange


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Send a recorded trace to a server at its recorded times and measure the answers."
    parser.epilog = "exit code: 0 valid, 1 usage, 3 the load was not the load asked for, 4 server unusable"
    parser.add_argument("trace", metavar="TRACE", help="a Mooncake JSONL or Azure CSV trace")
    _add_server_arguments(parser.add_argument_group("server"))
    _add_load_arguments(parser.add_argument_group("load"))
    _add_prompt_arguments(parser.add_argument_group("prompts"))
    out = parser.add_argument_group("output")
    out.add_argument("--output", metavar="FILE", help="write a JSON line per request, as requests end")
    out.add_argument("--summary-json", metavar="FILE", help="write the summary as JSON")
    out.add_argument(
        "--lag-limits",
        type=_lag_limits,
        default="0.2,2,20",
        metavar="P50,P99,MAX",
        help="lag in ms above which the load is invalid (default: %(default)s)",
    )


def _add_server_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--base-url", default="http://127.0.0.1:8000", help="(default: %(default)s)")
    group.add_argument("--model", help="default: the first of /v1/models")
    group.add_argument("--api-key", help="sent as a bearer token")
    group.add_argument(
        "--timeout",
        type=_positive_float,
        default=600.0,
        metavar="S",
        help="of a request (default: %(default)s)",
    )


def _add_load_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--time-scale", type=_positive_float, default=1.0, metavar="X",
        help="multiply arrival times; 0.5 replays twice as fast (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--rate-scale", type=_positive_float, default=1.0, metavar="X",
        help="thin (below 1) or superpose (above 1) at the same speed (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--start", type=_number_from_0, default=0.0, metavar="S", help="skip so much of the trace"
    )
    group.add_argument("--duration", type=_positive_float, metavar="S", help="of trace time (default: all)")
    group.add_argument("--limit", type=_positive_int, metavar="N", help="requests at most")
    group.add_argument("--max-input-tokens", type=_positive_int, metavar="N")
    group.add_argument("--max-output-tokens", type=_positive_int, metavar="N")
    group.add_argument(
        "--max-model-len", type=_positive_int, metavar="N", help="default: what the server says"
    )
    group.add_argument(
        "--cap-mode", choices=("drop", "clip"), default="drop",
        help="what to do with requests over a cap; both are counted (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--dejitter",
        action="store_true",
        help="spread equal time stamps of a quantised trace (default: replay as is)",
    )
    group.add_argument(
        "--max-inflight", type=_positive_int, metavar="N",
        help="hold back requests above so many; the wait is counted and makes the load invalid",
    )  # fmt: skip
    group.add_argument("--warmup", type=_count, default=0, metavar="N", help="unmeasured requests first")


def _add_prompt_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--token-range", type=_token_range, default="1000:30000", metavar="LOW:HIGH",
        help="token ids of prompts (default: %(default)s)",
    )  # fmt: skip
    group.add_argument("--vocab-size", type=_positive_int, metavar="N", help="for a vocabulary below 30000")
    group.add_argument("--temperature", type=_number_from_0, default=0.0, help="(default: %(default)s)")
    group.add_argument("--seed", type=int, default=0, help="of arrivals and prompts (default: %(default)s)")
    group.add_argument(
        "--nonce", type=int, metavar="N",
        help="mixed into every prompt (default: random, so that no run finds the last one's prompts cached, "
        "but 0 for traces with prefix ids)",
    )  # fmt: skip


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def _number_from_0(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0")
    return value


def _positive_float(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _token_range(text: str) -> TokenRange:
    low, _, high = text.partition(":")
    return TokenRange(int(low), int(high))


def _lag_limits(text: str) -> tuple[float, float, float]:
    p50, p99, largest = (_positive_float(part) for part in text.split(","))
    return p50, p99, largest
