"""Timing in CUDA-graph replays, and what is printed of it."""

from __future__ import annotations

import statistics
import traceback
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.kernels.attention.problem import Problem

BYTES_PER_S, FLOPS = 4.6e12, 797e12  # measured ceilings of an H200


def graph_us(run_layer: Callable[[int], Any], num_layers: int, replays: int = 7) -> float:
    """Microseconds a layer, median over replays of a graph that runs every layer once."""

    def run() -> None:
        for layer in range(num_layers):
            run_layer(layer)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(replays + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / num_layers)
    return float(statistics.median(times[1:]))


class Report:
    def __init__(self) -> None:
        self.readings: list[dict[str, Any]] = []
        self.failures = 0

    def compare(self, name: str, out: torch.Tensor, expected: torch.Tensor, limit: float = 1e-2) -> bool:
        error = ((out.float() - expected).norm() / expected.norm()).item()
        if error < limit:  # False for NaN
            return True
        self.failures += 1
        print(f"FAIL {name}: relative error {error:.2e}", flush=True)
        return False

    def attempt(self, name: str, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except Exception as error:
            self.failures += 1
            print(f"FAIL {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            traceback.print_exc(limit=-2)
            return None

    def reading(self, kind: str, case: str, kernel: str, us: float, problem: Problem) -> None:
        gbps, tflops = problem.kv_bytes / us / 1e3, problem.flops / us / 1e6
        share = gbps * 1e9 / BYTES_PER_S if kind == "decode" else tflops * 1e12 / FLOPS
        rate = f"{gbps:6.0f} GB/s" if kind == "decode" else f"{tflops:6.1f} TFLOP/s"
        print(f"{kind:8} {case:24} {kernel:48} {us:9.2f} us {rate} {share:6.1%}", flush=True)
        self.readings.append(
            {"kind": kind, "case": case, "kernel": kernel, "us": us, "GB/s": gbps, "TFLOP/s": tflops}
        )
