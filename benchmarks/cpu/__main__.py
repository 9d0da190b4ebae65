"""Octavo's daemon on a CPU beside its peers, in one run:

    python -m benchmarks.cpu --llama-venv PATH --json results.json > results.md

Prints the table on stdout and what is under way on stderr. `--llama-venv` is a virtual environment with
`llama-cpp-python[server]`; without it that comparison is left out. Run it from the repository's root, on a
machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

THREADS = "2"
# Read by torch when it is imported, here and in every process started from here.
os.environ |= {"OMP_NUM_THREADS": THREADS, "OMP_WAIT_POLICY": "passive"}

from benchmarks.cpu import parts  # noqa: E402
from benchmarks.cpu.machine import describe  # noqa: E402
from benchmarks.cpu.prompts import Prompts  # noqa: E402
from benchmarks.cpu.results import Results  # noqa: E402
from benchmarks.cpu.steps import measure_steps  # noqa: E402
from benchmarks.server_process import octavo  # noqa: E402

ON_ONE_DAEMON: dict[str, parts.Part] = {
    "decode": parts.measure_decode,
    "drawing": parts.measure_drawing,
    "prefill": parts.measure_prefill,
    "prefix": parts.measure_prefix,
    "clients": parts.measure_clients,
}
ALONE = {"start": parts.measure_start, "steps": measure_steps}
ALL_PARTS = ["start", *ON_ONE_DAEMON, "steps"]


def comma_separated(text: str) -> list[str]:
    return text.split(",")


def parse_arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", type=comma_separated, default=ALL_PARTS, help=f"of {','.join(ALL_PARTS)}")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each system, at most (default: 5)")
    parser.add_argument(
        "--budget", type=float, default=180, help="seconds after which decode begins no more runs"
    )
    parser.add_argument("--batches", type=comma_separated, default=["1", "8", "16"])
    parser.add_argument("--prompt-tokens", type=int, default=224, help="of decode (default: 224)")
    parser.add_argument("--output-tokens", type=int, default=32, help="of decode (default: 32)")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (default: 0)")
    parser.add_argument("--llama-venv", type=Path, help="virtual environment with llama_cpp.server")
    parser.add_argument("--json", type=Path, help="also write every run's value to this file")
    arguments = parser.parse_args()
    unknown = set(arguments.only) - set(ALL_PARTS)
    if unknown:
        parser.error(f"--only: no such part: {', '.join(sorted(unknown))}")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    settings = parts.Settings(
        repeats=arguments.repeats,
        budget_s=arguments.budget,
        batches=[int(batch) for batch in arguments.batches],
        prompt_tokens=arguments.prompt_tokens,
        output_tokens=arguments.output_tokens,
        llama_venv=arguments.llama_venv,
    )
    bench = parts.Bench(settings, Results(describe(settings.llama_venv)), Prompts(arguments.seed))
    run_parts(bench, arguments.only)
    if arguments.json:
        arguments.json.write_text(bench.results.to_json())
    print(bench.results.markdown())


def run_parts(bench: parts.Bench, names: list[str]) -> None:
    for name in [name for name in ALONE if name in names]:
        tell(name)
        ALONE[name](bench)
    shared = [name for name in ON_ONE_DAEMON if name in names]
    if shared:
        with octavo() as server:
            for name in shared:
                tell(name)
                ON_ONE_DAEMON[name](bench, server)
            parts.add_peak_memory(bench, server)


def tell(part: str) -> None:
    print(f"measuring {part}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
