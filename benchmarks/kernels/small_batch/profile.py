"""Where the time of a whole step goes: what each kernel adds to the chain, from a profile of graph replays.

A kernel starts while the one before it ends, so its own duration counts waiting too. "Adds" is the time from
the end of all kernels before it to its own end; over a step it sums to the step.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

_PRODUCTS = ("_gemv", "_skinny_gemm", "_split_combine_gemv")
_OF_A_LAYER = ("qkv", "o", "gate_up", "down")
_OTHERS = {
    "_attend_dot": "attention",
    "_attend_single_tile": "attention",
    "_split_combine": "combine",
    "_residual_norm": "norm",
    "_embed": "embed",
}
COLUMNS = ("norm", "qkv", "attention", "combine", "o", "gate_up", "down", "lm_head", "embed")


def profile(
    graph: torch.cuda.CUDAGraph, num_layers: int, replays: int = 20
) -> dict[str, tuple[float, float]]:
    """For each kind of kernel, microseconds a step that it (adds, lasts)."""
    graph.replay()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(replays):
            graph.replay()
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kernels = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: float(e["ts"]))
    steps = _split_at_embeddings(kernels)
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for step in steps:
        _add_step(totals, step, num_layers)
    return {kind: (adds / len(steps), lasts / len(steps)) for kind, (adds, lasts) in totals.items()}


def _split_at_embeddings(kernels: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    steps: list[list[dict[str, Any]]] = []
    for kernel in kernels:
        if kernel["name"] == "_embed":
            steps.append([])
        if steps:
            steps[-1].append(kernel)
    return steps


def _add_step(totals: dict[str, list[float]], step: list[dict[str, Any]], num_layers: int) -> None:
    products = 0
    end = float(step[0]["ts"])
    for kernel in step:
        kind = _OTHERS.get(kernel["name"], "other")
        if kernel["name"] in _PRODUCTS:
            last = products == num_layers * len(_OF_A_LAYER)
            kind = "lm_head" if last else _OF_A_LAYER[products % len(_OF_A_LAYER)]
            products += 1
        its_end = float(kernel["ts"]) + float(kernel["dur"])
        totals[kind][0] += max(0.0, its_end - end)
        totals[kind][1] += float(kernel["dur"])
        end = max(end, its_end)
