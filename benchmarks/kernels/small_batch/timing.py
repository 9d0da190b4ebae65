"""Timing by CUDA-graph replays."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch


def capture(launch: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of what `launch` enqueues; it is called twice, so that all kernels are loaded before."""
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph


def replay_us(graph: torch.cuda.CUDAGraph, readings: int = 7, least_ms: float = 4.0) -> float:
    """Microseconds a replay: the median of `readings`, each over replays that take `least_ms` together."""
    graph.replay()
    once_ms = _elapsed_ms(graph, 2) / 2
    replays = max(2, int(least_ms / max(once_ms, 1e-3)))
    return statistics.median(_elapsed_ms(graph, replays) / replays for _ in range(readings)) * 1e3


def _elapsed_ms(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))
