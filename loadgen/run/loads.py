"""The loads that commands send: a recorded trace, or a made-up one at a rate or by users."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from loadgen.run.launch import Load
from loadgen.schedule import Schedule
from loadgen.schedule.closed_loop import close_loop
from loadgen.schedule.from_trace import build_schedule
from loadgen.schedule.options import ScheduleOptions
from loadgen.schedule.synthetic import SyntheticLoad, synthetic_trace
from loadgen.traces import Trace


@dataclass(frozen=True, slots=True)
class Users:
    """A closed loop instead of arrivals."""

    concurrency: int
    think_time_s: float
    ramp_up_s: float


def trace_load(trace: Trace, options: ScheduleOptions) -> Load:
    """A recorded trace. The served model's context is a cap unless the options have one of their own."""

    def schedule(max_model_len: int | None) -> Schedule:
        limit = options.max_model_len or max_model_len
        return build_schedule(trace, replace(options, max_model_len=limit))

    description = {
        "kind": "replay",
        "name": Path(trace.path).name,
        "path": trace.path,
        "sha256": _sha256(Path(trace.path)),
        "format": trace.format,
        "block_size": trace.block_size,
        "rows_read": trace.rows_read,
        "notes": trace.notes,
        "options": {name: getattr(options, name) for name in ScheduleOptions.__slots__},
    }
    return Load(trace, schedule, description)


def synthetic_load(synthetic: SyntheticLoad, options: ScheduleOptions, users: Users | None = None) -> Load:
    """Raises ValueError for forms that are wrong, or a load without an end."""
    if synthetic.requests is None and (synthetic.duration_s is None or users is not None):
        raise ValueError("say how many: --requests N" + ("" if users else ", or for how long: --duration S"))
    # The arrivals of a closed loop are not used; its duration stops the run, and not the schedule.
    trace = synthetic_trace(synthetic if users is None else replace(synthetic, duration_s=None, rate="1"))

    def schedule(max_model_len: int | None) -> Schedule:
        limit = options.max_model_len or max_model_len
        made = build_schedule(trace, replace(options, max_model_len=limit))
        if users is None:
            return made
        return close_loop(made, users.concurrency, think_time_s=users.think_time_s, ramp_up_s=users.ramp_up_s)

    name = f"{synthetic.process}, {synthetic.rate} req/s"
    if users is not None:
        name = f"{users.concurrency} users"
    description = {
        "kind": "load",
        "name": name,
        "format": "synthetic",
        "block_size": trace.block_size,
        "rows_read": trace.rows_read,
        "options": asdict(synthetic) | {"users": None if users is None else asdict(users)},
    }
    return Load(trace, schedule, description)


def _sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
