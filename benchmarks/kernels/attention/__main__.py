"""Paged attention kernels on a GPU: checked against fp32, timed in CUDA-graph replays, tiles swept.

    python3 -m benchmarks.kernels.attention --out OUT_DIR

Prints FAIL lines for what is wrong and a table of times with the share of the card's ceilings, and writes
attention.json: the best of each case under "decode" and "prefill", all times under "readings".
flash-attn is measured where it can be imported. Kernels are compiled by several processes at the start.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

from benchmarks.kernels.attention.checks import check_jobs, flash_version, host_times, plan_and_run
from benchmarks.kernels.attention.measure import Report
from benchmarks.kernels.attention.problem import Problem, shape_of
from benchmarks.kernels.attention.sweeps import (
    DECODE_TILES,
    PREFILL_TILES,
    FixedDecode,
    decode_problem,
    sweep_decode,
    sweep_prefill,
)
from kernels.attention.flash_backend import FlashAttention
from kernels.triton.attention_decode import DecodeConfig
from kernels.triton.attention_prefill import PrefillConfig
from kernels.triton.pdl import Trigger

PREPARERS = 12
HEADS = [(32, 8), (16, 8)]
# (rows, context)
DECODES = [
    (1, 512), (4, 512), (16, 512), (1, 4096), (64, 1024), (256, 1024), (8, 4096), (16, 4096), (1, 32768),
    (64, 4096), (512, 512),
]  # fmt: skip
# (rows, context) of each chunk
PREFILLS = [
    [(1024, 1024)], [(128, 128)], [(2048, 32768)], [(1024, 1024)] * 8, [(8192, 8192)], [(512, 4096)] * 2,
]  # fmt: skip


def first_flash_call() -> None:
    """Run in a process of its own: how long flash-attn takes to start, its kernels on disk already."""
    begin = time.perf_counter()
    shape = shape_of((32, 8))
    if flash_version(shape) is None:
        return
    problem = Problem(shape, [(1, 128)] * 4 + [(128, 128)])
    backend = FlashAttention(shape)
    backend.caches = problem.backend.caches
    backend.tuning = replace(backend.tuning, flash_decode_pairs=0)
    imported = time.perf_counter()
    plan_and_run(backend, problem)
    torch.cuda.synchronize()
    done = time.perf_counter()
    print(f"flash-attn import {imported - begin:.1f} s, first step {done - imported:.1f} s", flush=True)


def prepare_share(index: int) -> int:
    """Every PREPARERS-th check, and every PREPARERS-th variant to compile, by running it on a small problem.

    Compiled kernels stay in Triton's cache on disk, for the process that times them. Returns the failures.
    """
    report = Report()
    jobs = check_jobs(report)
    for heads in HEADS:
        small = decode_problem(heads, 2, 300)
        for keys, warps, stages in DECODE_TILES:
            configs = [DecodeConfig(keys, warps, stages, 2, trigger=t) for t in get_args(Trigger)]
            jobs += [partial(run_once, small, config) for config in configs]
        prompt = Problem(shape_of(heads), [(200, 300)])
        jobs += [partial(run_once, prompt, PrefillConfig(*tile)) for tile in PREFILL_TILES]
    for number, job in enumerate(jobs[index::PREPARERS]):
        report.attempt(f"preparing {index + number * PREPARERS}", job)
    return report.failures


def run_once(problem: Problem, config: DecodeConfig | PrefillConfig) -> None:
    backend: Any = problem.backend
    if isinstance(config, DecodeConfig):
        backend.tuning = FixedDecode(config)
    else:
        backend.prefill_config = config
    plan_and_run(backend, problem)


def prepare_all() -> int:
    """Checks and compiles in processes side by side; returns how many of them failed."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.kernels.attention"]
    preparers = [subprocess.Popen([*command, "--prepare", str(index)]) for index in range(PREPARERS)]
    failed = sum(process.wait() != 0 for process in preparers)
    subprocess.run([*command, "--first-flash-call"], check=False)
    print(f"[{time.perf_counter() - begin:.0f} s] compiled and checked", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--budget", type=float, default=150.0, help="seconds, after which no case is begun")
    parser.add_argument("--prepare", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--first-flash-call", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.manual_seed(1)
    with torch.inference_mode():
        if arguments.first_flash_call:
            first_flash_call()
            return 0
        if arguments.prepare is not None:
            return min(prepare_share(arguments.prepare), 1)
        return measure_all(arguments.out, arguments.budget)


def measure_all(out: Path, budget: float) -> int:
    begin = time.perf_counter()
    report, results = Report(), dict[str, Any]()
    report.failures += prepare_all()
    results["host"] = report.attempt("host", host_times)
    cases: list[tuple[str, Callable[[], Any]]] = []
    for heads in HEADS:
        cases += [("decode", partial(sweep_decode, report, heads, *case)) for case in DECODES]
        cases += [("prefill", partial(sweep_prefill, report, heads, lens)) for lens in PREFILLS]
    for kind, case in cases:
        if time.perf_counter() - begin > budget:
            print("out of time: remaining cases left out", flush=True)
            break
        results.setdefault(kind, []).append(report.attempt(kind, case))
        torch.cuda.empty_cache()
        (out / "attention.json").write_text(json.dumps({**results, "readings": report.readings}, indent=1))
    print(f"[{time.perf_counter() - begin:.0f} s] {report.failures} failures", flush=True)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
