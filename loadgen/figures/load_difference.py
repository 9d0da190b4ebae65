"""In what the loads of two runs differ: without a word of that, their latencies look comparable."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadgen.figures.load import arrival_rate
from loadgen.record import Run
from loadgen.schedule import Schedule

Difference = dict[str, Any]  # {"base": ..., "other": ...}, numbers or names


def load_difference(
    base: Run, base_schedule: Schedule, other: Run, other_schedule: Schedule
) -> dict[str, Difference]:
    """The parts that differ, by name; empty for runs that were to send the same at the same times.

    What was asked for is compared, not what a server or a busy client made of it.
    """
    before, after = _parts(base, base_schedule), _parts(other, other_schedule)
    return {
        name: {"base": shown, "other": after[name][1]}
        for name, (compared, shown) in before.items()
        if _differ(compared, after[name][0])
    }


def _parts(run: Run, schedule: Schedule) -> dict[str, tuple[Any, Any]]:
    """(what is compared, what is shown of it) of each part of a load."""
    env, requests = run.env, schedule.requests
    load = env["load"]
    prompts = [request.input_tokens for request in requests]
    answers = [request.output_tokens for request in requests]
    shared = env.get("ideal_cache_hit_rate")
    follows = sum(request.follows for request in requests)
    return {
        "load": ((load["name"], load.get("sha256")), load["name"]),
        "requests": (len(requests), len(requests)),
        "of them after an answer": (follows, follows),
        "due times, requests/s": ([request.intended_ns for request in requests], _rate(schedule)),
        "prompt tokens, mean": (prompts, _mean(prompts)),
        "answer tokens, mean": (answers, _mean(answers)),
        "share that a cache could find": (shared, shared),
        "seed": (env["seed"], env["seed"]),
        "endpoint": (env.get("endpoint"), env.get("endpoint")),
        "most in flight": (env.get("max_inflight"), env.get("max_inflight")),
    }


def _differ(base: Any, other: Any) -> bool:
    """Lists are compared as far as both go: how many requests there are is a part of its own."""
    if isinstance(base, list):
        common = min(len(base), len(other))
        return bool(base[:common] != other[:common])
    return bool(base != other)


def _rate(schedule: Schedule) -> float | None:
    """Arrivals per second, but for those that wait for an answer: the server decides when they come."""
    return arrival_rate(np.sort([r.intended_ns for r in schedule.requests if not r.follows]))


def _mean(values: list[int]) -> float | None:
    return float(np.mean(values)) if values else None
