"""Norm, activation, rotary and sampling kernels on a GPU: checked, timed against their bytes, tiles swept.

    python -m benchmarks.kernels.elementwise [OUT_DIR] [--seconds 85]

Prints a line for each check (FAIL where one fails), then microseconds in a CUDA-graph replay beside the time
that the bytes alone take and that of the same step in plain torch. Writes elementwise.json to OUT_DIR.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import torch

from benchmarks.kernels.elementwise.checks import check_elementwise, check_sampling
from benchmarks.kernels.elementwise.operands import MIXES, SHAPES
from benchmarks.kernels.elementwise.report import Report, best_tiles
from benchmarks.kernels.elementwise.timings import (
    sweep_restrict,
    sweep_sampling,
    time_norms,
    time_rotary,
    time_sampling,
    time_silu,
)

NUM_TOKENS = (1, 16, 64, 256, 1024, 8192)
NUM_ROWS = (1, 16, 256)


def run(report: Report) -> None:
    for shape in SHAPES:
        for num_tokens in (1, 16, 333):
            report.attempt(f"check {shape}", partial(check_elementwise, report, shape, num_tokens))
    for mix in MIXES:
        report.attempt(f"check {mix}", partial(check_sampling, report, mix))
    for num_rows in NUM_ROWS:
        report.attempt("sampling", partial(time_sampling, report, num_rows))
    for part in (time_norms, time_silu, time_rotary):
        for shape in SHAPES:
            for num_tokens in NUM_TOKENS:
                report.attempt(
                    f"{part.__name__} {shape} {num_tokens}", partial(part, report, shape, num_tokens)
                )
    for sweep in (sweep_sampling, sweep_restrict):
        for num_rows in NUM_ROWS:
            report.attempt(sweep.__name__, partial(sweep, report, num_rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", nargs="?", default="out", type=Path)
    parser.add_argument("--seconds", type=float, default=85.0)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    report = Report(arguments.seconds)
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    with torch.inference_mode():
        run(report)
    best = best_tiles(report.timings)
    for name, entry in best.items():
        if entry["tile"]:
            print(f"best {name}: {entry['us']:.2f} us (default {entry['default_us']}) {entry['tile']}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    result = {"device": torch.cuda.get_device_name(), "best": best, "timings": report.timings}
    (arguments.out / "elementwise.json").write_text(json.dumps(result, indent=1))
    print(f"{report.failures} failures")
    return min(report.failures, 1)


if __name__ == "__main__":
    sys.exit(main())
