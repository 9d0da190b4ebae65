"""How many requests of a trace a server completes in a second when it is flooded, by simulation."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from math import ceil

from loadgen.cli.replay import add_arguments, schedule_options
from loadgen.run.loads import trace_load
from loadgen.simulator.fleet import Outcome
from loadgen.simulator.profile import Profile
from loadgen.simulator.setting import Setting, simulate
from loadgen.traces import read_trace

_FLOOD = 1000  # requests, at once more than any server runs


@dataclass(frozen=True, slots=True)
class Rates:
    recorded: float  # requests per second of the trace, after caps and window
    capacity: float


def saturation_rate(profile: Profile, trace_path: str, flags: list[str]) -> Rates:
    """The middle 60 % of the completions of a flood, over the time that they took."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args([trace_path, *flags])
    trace = read_trace(trace_path, start_s=arguments.start, duration_s=arguments.duration, seed=0)
    options = schedule_options(arguments)
    as_it_is = trace_load(trace, options).schedule(profile.limits.max_model_len).requests
    recorded = len(as_it_is) / arguments.duration
    times = ceil(_FLOOD / len(as_it_is))
    flood = trace_load(trace, replace(options, rate_scale=float(times), time_scale=1e-3))
    ends: list[int] = []

    def note(outcome: Outcome) -> None:
        ends.append(outcome.record.finished_ns)

    requests = flood.schedule(profile.limits.max_model_len).requests
    simulate(profile, Setting(), requests, trace.block_size, note)
    low, high = len(ends) // 5, 4 * len(ends) // 5
    return Rates(recorded, (high - low) / ((ends[high] - ends[low]) / 1e9))
