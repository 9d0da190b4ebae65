"""Products of steps with prompts or many decodes: cuBLAS, cuBLASLt's other algorithms and quack, under load.

    python -m benchmarks.kernels.products --out DIR [--seconds 270] [--rows 1152,512,2048,256,128]

The 8B's shapes, each product alone, with what follows it in a layer, and a chain of layers in a CUDA graph.
Quack's kernels are compiled first, in a process for each core. Every candidate is checked against fp32.
Prints a line for each comparison, microseconds a product, and writes products.json as it goes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch


class Report:
    """Prints what is found and keeps it; what begins after `seconds` is skipped."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.started = time.monotonic()
        self.deadline = self.started + seconds
        self.content: dict[str, Any] = {"compared": [], "failures": [], "notes": {}}

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.started:6.1f} s  {text}", flush=True)

    def note(self, name: str, value: Any) -> None:
        self.content["notes"][name] = value
        self.say(f"{name}: {value}")

    def attempt(self, name: str, part: Callable[[], object]) -> None:
        if time.monotonic() > self.deadline:
            self.say(f"SKIP {name}")
            return
        try:
            part()
        except Exception as error:
            self.failed(name, error)
            traceback.print_exc(limit=-3)

    def failed(self, name: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {str(error)[:300]}"
        self.content["failures"].append([name, text])
        self.say(f"FAIL {name}: {text}")

    def compared(self, rows: int, name: str, us: dict[str, float], quick: dict[str, float]) -> None:
        self.content["compared"].append({"rows": rows, "name": name, "us": us, "quick_us": quick})
        first = next(iter(us.values()))
        parts = [f"{label} {value:.1f} ({value / first:.3f})" for label, value in us.items()]
        self.say(f"{rows} rows, {name}: {', '.join(parts)}")
        self.folder.joinpath("products.json").write_text(json.dumps(self.content, indent=1))


def compile_first(report: Report) -> Any:
    """Before the device is touched, since processes are forked. Quack's products; None without quack."""
    from benchmarks.kernels.products.quack_kernels import QuackKernels, compile_all

    started = time.perf_counter()
    try:
        quack = QuackKernels()
    except Exception as error:
        report.failed("importing quack", error)
        return None
    report.note("seconds to import quack", round(time.perf_counter() - started, 1))
    started = time.perf_counter()
    seconds: dict[str, list[float]] = {}
    for (kind, tile), taken, error in compile_all(seconds=110):
        seconds.setdefault(kind, []).append(round(taken, 1))
        if error:
            report.failed(f"compiling {kind} {tile}", RuntimeError(error))
    report.note("seconds a kernel, compiling", seconds)
    report.note("seconds to compile all", round(time.perf_counter() - started, 1))
    return quack


def measure(report: Report, quack: Any, row_counts: list[int]) -> None:
    from benchmarks.kernels.products.cases import Layers, Rows
    from benchmarks.kernels.products.cublaslt import CublasLt

    layers = Layers()
    torch.mm(layers.norm[None], layers.weights["o"][0].t())
    lt = None
    try:
        lt = CublasLt()
    except Exception as error:
        report.failed("cuBLASLt", error)
    report.say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    cases = [Rows(layers, quack, num_rows, report) for num_rows in row_counts]
    for rows in cases:
        report.attempt(f"{rows.num_rows} gated", rows.gated)
        for name in ("down", "o"):
            report.attempt(f"{rows.num_rows} {name}, add, norm", partial(rows.added, name))
        report.attempt(f"{rows.num_rows} qkv", partial(rows.product, "qkv", lt))
        report.attempt(f"{rows.num_rows} layer", rows.chain)
    for rows in cases:
        for name in ("gate_up", "down", "o"):
            report.attempt(f"{rows.num_rows} {name}", partial(rows.product, name, lt))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--seconds", type=float, default=270.0)
    parser.add_argument("--rows", default="1152,512,2048,256,128")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    report = Report(arguments.out, arguments.seconds)
    quack = compile_first(report)
    torch.manual_seed(0)
    power = _log_power(arguments.out / "power.csv")
    try:
        with torch.inference_mode():
            measure(report, quack, [int(rows) for rows in arguments.rows.split(",")])
    finally:
        if power is not None:
            power.terminate()
        arguments.out.joinpath("products.json").write_text(json.dumps(report.content, indent=1))
    report.say(f"{len(report.content['failures'])} failures")
    return 0


def _log_power(file: Path) -> subprocess.Popen[bytes] | None:
    query = "--query-gpu=timestamp,index,power.draw,clocks.sm,temperature.gpu"
    with suppress(OSError), file.open("wb") as out:
        return subprocess.Popen(["nvidia-smi", query, "--format=csv", "-lms", "500"], stdout=out)
    return None


if __name__ == "__main__":
    sys.exit(main())
