"""Reads from a step log when the device was busy with each step, and what the host took around it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from engine.record import StepEntry
from loadgen.simulator.exertion import Exertion
from loadgen.simulator.step_shape import StepShape, shape_of_entry

_IDLE_NS = 500_000  # after a longer pause the loop had waited, for a request or for the right moment


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step as the engine thread saw it. Times in seconds."""

    shape: StepShape
    device_s: float  # from its beginning on the device, when part of it may still have to be launched
    backlog_s: float  # how long the device was still busy with the step before when launching began
    exertion: float  # of the device as it began
    schedule_s: float
    launch_s: float  # without the step itself, where launching computes it
    commit_s: float
    num_generated: int
    pause_s: float | None  # from settling a step to planning this one; None after a wait

    def waited_s(self, lead_s: float) -> float:
        """How much of `device_s` the device waited for what is launched `lead_s` after the first of it."""
        return max(lead_s - self.backlog_s, 0.0)


def is_blocking(entries: list[StepEntry]) -> bool:
    """Whether launching a step computes it, as on a CPU, so that there is nothing to wait for."""
    return sum(entry.collect_ns for entry in entries) < sum(entry.launch_ns for entry in entries) / 50


def measured_steps(entries: list[StepEntry]) -> list[MeasuredStep]:
    """The steps of a log, in order, that the device timed."""
    blocking = is_blocking(entries)
    exertion = Exertion()
    steps = []
    free_ns = 0  # when the device had done all before
    settled_ns = [entry.tokens_at_ns + entry.commit_ns for entry in entries]
    for entry in entries:
        if not entry.device_ns:
            continue
        shape = shape_of_entry(entry)
        launched_ns = entry.scheduled_at_ns + entry.schedule_ns
        before = bisect_right(settled_ns, entry.scheduled_at_ns)
        pause_ns = entry.scheduled_at_ns - settled_ns[before - 1] if before else _IDLE_NS
        steps.append(
            MeasuredStep(
                shape=shape,
                device_s=entry.device_ns / 1e9,
                backlog_s=max(free_ns - launched_ns, 0) / 1e9,
                exertion=0.0 if blocking else exertion.before(max(launched_ns, free_ns)),
                schedule_s=entry.schedule_ns / 1e9,
                launch_s=(entry.launch_ns - (entry.device_ns if blocking else 0)) / 1e9,
                commit_s=entry.commit_ns / 1e9,
                num_generated=entry.num_generated,
                pause_s=pause_ns / 1e9 if pause_ns < _IDLE_NS else None,
            )
        )
        begun_ns = max(launched_ns, free_ns)
        free_ns = _ended_ns(entry, begun_ns)
        if shape.num_chunks:
            exertion.add(begun_ns, free_ns)
    return steps


def _ended_ns(entry: StepEntry, begun_ns: int) -> int:
    """Seen by the host if it waited, else by the device's own measure."""
    ready_ns = entry.tokens_at_ns
    return ready_ns if entry.was_awaited else min(ready_ns, begun_ns + entry.device_ns)
