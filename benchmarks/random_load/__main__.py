"""Sends a random load to a server with a small KV pool, and holds every greedy answer against the same alone.

    python -m benchmarks.random_load --seconds 600 --model FOLDER     # a GPU, random weights of that shape
    python -m benchmarks.random_load --seconds 60                     # a CPU, a tiny model

Prompts of 1 to 4,000 tokens that share prefixes, n up to 4, streams, greedy and sampled, log-probabilities,
stop ids, priorities, clients that leave, refused requests, bursts beyond the pool. Prints a summary as JSON.
Exit code 1 if an answer is wrong, anything is left behind, or the load did not do what it is for (no
preemption, no prefix hit, no abort).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from pathlib import Path

from benchmarks.random_load.mix import Limits
from benchmarks.random_load.run import Options, run
from benchmarks.random_load.tiny_model import write_tiny_model
from benchmarks.server_process import octavo


def main() -> int:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or Path(folder)
        if not arguments.model:
            write_tiny_model(model)
        vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
        limits = Limits(
            min(vocab_size, arguments.max_token_id),
            arguments.max_prompt,
            arguments.max_output,
            arguments.mean_leave_s,
        )
        options = Options(
            seconds=arguments.seconds,
            rate=arguments.rate,
            burst=arguments.burst,
            num_prompts=arguments.prompts,
            near_tie=arguments.near_tie,
            limits=limits,
        )
        with octavo(*_flags(arguments, model)) as server:
            summary = asyncio.run(run(server.base_url, options, random.Random(arguments.seed)))
    text = json.dumps({"seed": arguments.seed, **summary}, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    return 1 if summary["problems"] or summary["not_tried"] else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--seconds", type=float, default=600, help="how long the load lasts (default: 600)")
    add("--seed", type=int, default=0, help="of everything that is random (default: 0)")
    add("--model", type=Path, help="model folder; its weights are made up unless --serve-flags say otherwise")
    add("--num-kv-blocks", type=int, default=160, help="size of the pool (default: 160)")
    add("--check-invariants", action=argparse.BooleanOptionalAction, default=True)
    add("--serve-flags", default="", help="further flags of `octavo serve`")
    add("--rate", type=float, default=10, help="requests a second between bursts, on average (default: 10)")
    add("--burst", type=int, default=64, help="most requests at once (default: 64)")
    add("--prompts", type=int, default=100, help="known prompts, each asked alone beforehand (default: 100)")
    add("--max-prompt", type=int, default=4000, help="tokens (default: 4000)")
    add("--max-output", type=int, default=128, help="tokens (default: 128)")
    add("--max-token-id", type=int, default=257, help="ids in prompts are below it (default: 257)")
    add(
        "--mean-leave-s",
        type=float,
        default=1.0,
        help="seconds until a leaving client is gone (default: 1)",
    )
    add("--near-tie", type=float, default=0.15, help="how far a token may be behind the best (default: 0.15)")
    add("--out", type=Path, help="file for the summary")
    return parser.parse_args()


def _flags(arguments: argparse.Namespace, model: Path) -> list[str]:
    flags = ["--model", str(model), "--load-format", "dummy", "--served-model-name", "m"]
    flags += ["--num-kv-blocks", str(arguments.num_kv_blocks), "--scheduling-policy", "priority"]
    flags.append("--enable-admin-routes")  # to forget cached prefixes
    if arguments.check_invariants:
        flags.append("--check-invariants")
    return flags + arguments.serve_flags.split()


if __name__ == "__main__":
    sys.exit(main())
