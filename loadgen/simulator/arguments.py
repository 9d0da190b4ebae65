"""The flags of `octavo simulate`."""

from __future__ import annotations

import argparse

from loadgen.cli import arguments as shared
from loadgen.cli.explain import refuse_in_one_line
from loadgen.cli.replay import add_trace_arguments
from loadgen.cli.values import positive_float, positive_int
from loadgen.simulator.routing import ROUTERS
from loadgen.simulator.setting import Setting

_SERVERS = "as for `octavo serve` (default: the profile's)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    refuse_in_one_line(parser)
    parser.usage = "%(prog)s [TRACE] [options]"
    parser.description = (
        "Run the real scheduler and block manager over a trace in virtual time, with the step times that "
        "`octavo calibrate` learnt of a server."
    )
    parser.add_argument(
        "trace", metavar="TRACE", nargs="?",
        help="a trace, as for `octavo replay`, or the directory of a run"
    )  # fmt: skip
    parser.add_argument("--profile", metavar="FILE", help="what `octavo calibrate` wrote")
    parser.add_argument(
        "--parity", nargs=2, metavar=("STEP_LOG", "EVENT_LOG"),
        help="instead: do the decisions of a live run again, from its logs, and compare them step by step",
    )  # fmt: skip
    add_trace_arguments(parser.add_argument_group("what of the trace to send"))
    shared.add_cap_arguments(parser)
    parser.add_argument("--seed", type=int, default=0, help="of arrivals (default: 0)")
    _add_setting_arguments(parser.add_argument_group("what if"))
    _add_output_arguments(parser.add_argument_group("judging and output"))


def _add_setting_arguments(group: argparse._ArgumentGroup) -> None:
    """Those of the server are the profile's where they are not given."""
    group.add_argument("--replicas", type=positive_int, default=1, metavar="N", help="(default: 1)")
    group.add_argument(
        "--routing", choices=tuple(ROUTERS), default="round-robin",
        help="how requests are spread over replicas (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--admission-ttft-ms", type=positive_float, metavar="MS",
        help="answer 429 where the prompts that wait would take longer",
    )  # fmt: skip
    group.add_argument("--num-kv-blocks", type=positive_int, metavar="N", help=_SERVERS)
    group.add_argument("--max-num-seqs", type=positive_int, metavar="N", help=_SERVERS)
    group.add_argument("--max-num-batched-tokens", type=positive_int, metavar="N", help=_SERVERS)
    group.add_argument("--scheduling-policy", choices=("fcfs", "prefill-first", "priority"), help=_SERVERS)
    group.add_argument("--itl-target-ms", type=float, metavar="MS", help=f"{_SERVERS}; 0 for none")
    group.add_argument("--pipeline-depth", type=int, choices=(1, 2), help=_SERVERS)
    group.add_argument("--no-noise", action="store_true", help="steps of one shape all take the same time")
    group.add_argument("--no-enable-prefix-caching", action="store_true", help=_SERVERS)


def _add_output_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--output", metavar="DIR", help="keep the run's record there, as a live run's")
    shared.add_objective_argument(group)
    group.add_argument(
        "--tally", action="store_true",
        help="only count who meets --slo, and keep no record: for loads of a million requests",
    )  # fmt: skip
    group.add_argument(
        "--plan", type=_rates, metavar="RATE,...",
        help="for each rate, in requests per second: the fewest replicas that meet --slo often enough",
    )  # fmt: skip
    group.add_argument(
        "--target", type=float, default=0.9, metavar="SHARE",
        help="of requests that must meet --slo, with --plan (default: %(default)s)",
    )  # fmt: skip


def setting_of(arguments: argparse.Namespace) -> Setting:
    changes = {
        "num_blocks": arguments.num_kv_blocks,
        "max_num_seqs": arguments.max_num_seqs,
        "max_num_batched_tokens": arguments.max_num_batched_tokens,
        "policy": arguments.scheduling_policy,
        "itl_target_s": None if arguments.itl_target_ms is None else arguments.itl_target_ms / 1000,
        "enable_prefix_caching": False if arguments.no_enable_prefix_caching else None,
    }
    ttft_ms = arguments.admission_ttft_ms
    return Setting(
        replicas=arguments.replicas,
        routing=arguments.routing,
        limits={name: value for name, value in changes.items() if value is not None},
        pipeline_depth=arguments.pipeline_depth,
        admission_ttft_s=None if ttft_ms is None else ttft_ms / 1000,
        noise_seed=None if arguments.no_noise else arguments.seed,
    )


def _rates(text: str) -> list[float]:
    rates = sorted(float(part) for part in text.split(","))
    if rates[0] <= 0:
        raise argparse.ArgumentTypeError(f"{text}: rates are above 0")
    return rates
