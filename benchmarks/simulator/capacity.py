"""How many requests of a trace a server completes in a second when it is flooded, live or by simulation."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from math import ceil

from loadgen.cli.replay import add_arguments, schedule_options
from loadgen.run.loads import trace_load
from loadgen.simulator.fleet import Outcome
from loadgen.simulator.profile import Profile
from loadgen.simulator.setting import Setting, simulate
from loadgen.traces import read_trace

_FLOOD = 1000  # requests, at once more than any server runs


def completion_rate(ends_ns: Iterable[int | None]) -> float:
    """The middle 60 % of the completions, over the time that they took, in requests per second."""
    ends = sorted(end for end in ends_ns if end is not None)
    low, high = len(ends) // 5, 4 * len(ends) // 5
    return (high - low) / ((ends[high] - ends[low]) / 1e9)


def saturation_rate(profile: Profile, trace_path: str, flags: list[str]) -> float:
    """`completion_rate` of a simulated flood."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args([trace_path, *flags])
    trace = read_trace(trace_path, start_s=0.0, duration_s=None, seed=0)
    options = replace(schedule_options(arguments), laps=ceil(_FLOOD / len(trace.rows)), time_scale=1e-3)
    ends: list[int] = []

    def note(outcome: Outcome) -> None:
        ends.append(outcome.record.finished_ns)

    requests = trace_load(trace, options).schedule(profile.limits.max_model_len).requests
    simulate(profile, Setting(), requests, trace.block_size, note)
    return completion_rate(ends)
