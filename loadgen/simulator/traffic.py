"""What is sent in a simulation: a trace under the options of a replay, or what a live run was to send."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.record.reader import read_env, read_schedule
from loadgen.run.launch import Load, describe_load
from loadgen.schedule import ScheduledRequest

_OF_A_RUN = ("load", "scheduled", "dropped", "clipped", "dejitter_ms", "ideal_cache_hit_rate")


@dataclass(frozen=True, slots=True)
class Traffic:
    requests: list[ScheduledRequest]
    block_size: int | None  # tokens of a block that the requests' hash ids name
    env: dict[str, Any]  # what the environment of a run tells of its load


def traffic_of_trace(load: Load, max_model_len: int) -> Traffic:
    """Raises TraceError if nothing is left to send."""
    schedule = load.schedule(max_model_len)
    return Traffic(schedule.requests, load.trace.block_size, describe_load(load, schedule))


def traffic_of_run(directory: Path) -> Traffic:
    """The schedule of a run: it and its simulation can be compared request by request.

    Raises RunError for the directory of anything else.
    """
    env = read_env(directory)
    requests = read_schedule(directory).requests
    return Traffic(requests, env["load"].get("block_size"), {name: env[name] for name in _OF_A_RUN})
