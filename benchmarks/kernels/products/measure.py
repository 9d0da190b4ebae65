"""Timing under a sustained load: candidates take turns, and the card, at its power cap, never rests."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import torch

Graph = torch.cuda.CUDAGraph


def quick_ms(graph: Graph, least_ms: float = 20.0) -> float:
    """Milliseconds a replay, over some replays."""
    once = _elapsed(graph, 2)
    return _elapsed(graph, max(2, int(least_ms / max(once, 1e-3))))


def _elapsed(graph: Graph, replays: int) -> float:
    start, end = _event(), _event()
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / replays


def sustained_ms(graphs: Mapping[str, Graph], seconds: float = 0.2, rounds: int = 3) -> dict[str, float]:
    """Milliseconds a replay of each, the median of `rounds`, each of `seconds`, without a pause."""
    once = {name: max(_elapsed(graph, 3), 1e-3) for name, graph in graphs.items()}
    replays = {name: max(2, int(seconds * 1e3 / ms)) for name, ms in once.items()}
    marks: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in graphs}
    names = list(graphs)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start, end = _event(), _event()
            graphs[name].replay()  # so that its beginning is not that of the clock's change
            start.record()
            for _ in range(replays[name]):
                graphs[name].replay()
            end.record()
            marks[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: statistics.median(start.elapsed_time(end) / replays[name] for start, end in marks[name])
        for name in names
    }


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
