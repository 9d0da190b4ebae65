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

from benchmarks.kernels.small_batch.cases import MODELS, ROWS

CHECK_TIMEOUT_S = 150


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rows", nargs="+", type=int, choices=ROWS, default=list(ROWS))
    parser.add_argument("--processes", type=int, default=14, help="for the checks, which mostly compile")
    parser.add_argument("--sweep-seconds", type=float, default=25.0, help="for each model")
    parser.add_argument(
        "--share", nargs=2, type=int, metavar=("INDEX", "COUNT"), help="run these checks only"
    )
    parser.add_argument("--steps", choices=list(MODELS), help="run this model's steps only")
    arguments = parser.parse_args()
    if arguments.share:
        from benchmarks.kernels.small_batch.check import run_share

        run_share(*arguments.share, arguments.models, arguments.rows)
        return 0
    if arguments.steps:
        from benchmarks.kernels.small_batch.steps import StepBenchmark

        StepBenchmark(arguments.steps, arguments.rows, time.monotonic() + arguments.sweep_seconds).run(
            arguments.out
        )
        return 0
    rows = ["--rows", *map(str, arguments.rows)]
    failed = _check_all(arguments.processes, ["--models", *arguments.models, *rows])
    for model in arguments.models:
        options = [
            "--steps",
            model,
            "--out",
            str(arguments.out),
            "--sweep-seconds",
            str(arguments.sweep_seconds),
            *rows,
        ]
        failed |= _show(_start(options), timeout=None)
    return int(failed)


def _check_all(count: int, which: list[str]) -> bool:
    begin = time.monotonic()
    shares = [_start(["--share", str(index), str(count), *which]) for index in range(count)]
    failed = False
    for share in shares:
        failed |= _show(share, timeout=max(1.0, begin + CHECK_TIMEOUT_S - time.monotonic()))
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
