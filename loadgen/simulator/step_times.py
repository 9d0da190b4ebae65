"""Reads from a step log when the device was busy with each step, and what the host took around it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from engine.record import StepEntry
from loadgen.simulator.step_shape import StepShape, shape_of_entry

_IDLE_NS = 500_000  # after a longer pause the loop had waited, for a request or for the right moment


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step as the engine thread saw it. Times in seconds."""

    shape: StepShape
    device_s: float
    schedule_s: float
    launch_s: float  # without the step itself, where launching computes it
    commit_s: float
    num_generated: int
    pause_s: float | None  # from settling a step to planning this one; None after a wait
    after_idle: bool  # the device had nothing to do when it came, so launching it is in `device_s`


def is_blocking(entries: list[StepEntry]) -> bool:
    """Whether launching a step computes it, as on a CPU, so that there is nothing to wait for."""
    return sum(entry.collect_ns for entry in entries) < sum(entry.launch_ns for entry in entries) / 50


def measured_steps(entries: list[StepEntry]) -> list[MeasuredStep]:
    """The steps of a log, in order, that the device timed."""
    blocking = is_blocking(entries)
    steps = []
    collected_ns = 0
    settled_ns = [entry.collected_at_ns + entry.collect_ns + entry.commit_ns for entry in entries]
    for entry in entries:
        if not entry.device_ns:
            continue
        launched_ns = entry.scheduled_at_ns + entry.schedule_ns
        ready_ns = entry.collected_at_ns + entry.collect_ns
        before = bisect_right(settled_ns, entry.scheduled_at_ns)
        pause_ns = entry.scheduled_at_ns - settled_ns[before - 1] if before else _IDLE_NS
        steps.append(
            MeasuredStep(
                shape=shape_of_entry(entry),
                device_s=entry.device_ns / 1e9,
                schedule_s=entry.schedule_ns / 1e9,
                launch_s=(entry.launch_ns - (entry.device_ns if blocking else 0)) / 1e9,
                commit_s=entry.commit_ns / 1e9,
                num_generated=entry.num_generated,
                pause_s=pause_ns / 1e9 if pause_ns < _IDLE_NS else None,
                after_idle=not blocking and launched_ns >= collected_ns,
            )
        )
        collected_ns = ready_ns
    return steps
