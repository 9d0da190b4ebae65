"""Idle time and the host's work, read from a log whose times are known."""

from __future__ import annotations

from benchmarks.step_log import table, times_by_size
from engine.record import StepEntry

MS = 1_000_000


def entry(step: int, end_ms: int, device_ms: int, num_decodes: int, num_chunks: int = 0) -> StepEntry:
    """A step whose end the host waited for, and for which it worked 3 ms."""
    count = num_decodes + num_chunks
    return StepEntry(
        *(step, 0, 0, count, 0, 0, count),
        *(list(range(count)), [9] * count, [8] * count, [1] * count),
        is_prefill=[False] * num_decodes + [True] * num_chunks,
        schedule_ns=MS,
        launch_ns=MS,
        collected_at_ns=(end_ms - 1) * MS,
        collect_ns=MS,
        commit_ns=MS,
        device_ns=device_ms * MS,
    )


def test_idle_is_what_lies_between_the_ends_of_steps_with_decodes() -> None:
    log = [
        entry(0, 10, 10, 0, num_chunks=2),
        entry(1, 90, 5, 5),  # what came before was a prompt alone: perhaps nothing was there to do
        entry(2, 96, 5, 5, num_chunks=1),
        entry(3, 100, 4, 7),
        entry(4, 101, 0, 7),  # not timed
    ]
    steps = times_by_size(log)
    assert list(steps) == [4]
    assert steps[4].idle == [MS, 0]
    assert steps[4].between_ends == [6 * MS, 4 * MS]
    assert "| 4 to 7 | 3 | 5.00 / 5.00 | 10.0 % | 3.00 / 3.00 |" in table(steps)


def test_an_end_that_nobody_waited_for_is_not_known() -> None:
    log = [entry(step, 10 * step, 9, 3) for step in range(1, 4)]
    log[1].collect_ns = 0
    assert times_by_size(log)[2].idle == []
