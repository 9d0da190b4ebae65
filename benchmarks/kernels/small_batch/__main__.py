"""Check and time the small-batch decode step on this machine's GPU.

    python -m benchmarks.kernels.small_batch --out RESULTS
    python -m benchmarks.kernels.small_batch.merge RESULTS/small_batch_8B.json

First, processes side by side check every kernel and tile against fp32 torch, then one process a model checks,
times and tunes whole steps. FAIL lines are printed, and the best tiles written to RESULTS as JSON in the form
of kernels/tuned/small_batch.json. The exit status is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.kernels.small_batch.cases import CONTEXTS, MODELS, ROWS


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rows", nargs="+", type=int, choices=ROWS, default=list(ROWS))
    parser.add_argument("--contexts", nargs="+", type=int, choices=CONTEXTS, default=list(CONTEXTS))
    parser.add_argument("--length", type=int, help="of the measured contexts; default: each at its longest")
    parser.add_argument(
        "--profile", nargs="*", type=int, default=[], help="rows of steps to tell kernel by kernel"
    )
    parser.add_argument("--processes", type=int, default=14, help="for the checks, which mostly compile")
    parser.add_argument("--check-seconds", type=float, default=150.0, help="after which checks are given up")
    parser.add_argument("--sweep-seconds", type=float, default=25.0, help="for each model")
    parser.add_argument(
        "--share", nargs=2, type=int, metavar=("INDEX", "COUNT"), help="run these checks only"
    )
    parser.add_argument("--steps", choices=list(MODELS), help="run this model's steps only")
    arguments = parser.parse_args()
    if arguments.share:
        from benchmarks.kernels.small_batch.check import run_share

        run_share(*arguments.share, arguments.models, arguments.rows, arguments.contexts)
        return 0
    if arguments.steps:
        from benchmarks.kernels.small_batch.steps import StepBenchmark

        deadline = time.monotonic() + arguments.sweep_seconds
        benchmark = StepBenchmark(
            arguments.steps, arguments.rows, arguments.contexts, deadline, arguments.length
        )
        benchmark.run(arguments.out, arguments.profile)
        return 0
    which = ["--rows", *map(str, arguments.rows), "--contexts", *map(str, arguments.contexts)]
    failed = _check_all(arguments.processes, arguments.check_seconds, ["--models", *arguments.models, *which])
    for model in arguments.models:
        options = [
            "--steps",
            model,
            "--out",
            str(arguments.out),
            "--sweep-seconds",
            str(arguments.sweep_seconds),
            *which,
            *(["--length", str(arguments.length)] if arguments.length else []),
            *(["--profile", *map(str, arguments.profile)] if arguments.profile else []),
        ]
        failed |= _show(_start(options), timeout=None)
    return int(failed)


def _check_all(count: int, limit_s: float, which: list[str]) -> bool:
    begin = time.monotonic()
    shares = [_start(["--share", str(index), str(count), *which]) for index in range(count)]
    failed = False
    for share in shares:
        failed |= _show(share, timeout=max(1.0, begin + limit_s - time.monotonic()))
    print(f"checks took {time.monotonic() - begin:.0f} s", flush=True)
    return failed


def _start(options: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.kernels.small_batch", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _show(process: subprocess.Popen[str], timeout: float | None) -> bool:
    """Print what a process says; whether it failed, in its status or by a FAIL line."""
    failed = False
    if timeout is None and process.stdout is not None:
        for line in process.stdout:
            print(line, end="", flush=True)
            failed |= line.startswith("FAIL")
        return bool(process.wait()) or failed
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        output = process.communicate()[0] + "\nFAIL: out of time"
    print(output.strip(), flush=True)
    return bool(process.returncode) or any(line.startswith("FAIL") for line in output.splitlines())


if __name__ == "__main__":
    sys.exit(main())
