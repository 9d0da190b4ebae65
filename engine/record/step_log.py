"""The step log: one JSON line for each engine step, with what it computed and where its time went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.record.event_log import read_record_file, record_header
from engine.record.jsonl_writer import JsonlWriter

STEP_LOG_FORMAT = "octavo-step-log/1"

WAITED_NS = 50_000
"""Collecting takes longer only if the step has not ended yet."""


@dataclass(slots=True)
class StepEntry:
    """One step. Entry i of each list belongs to `sequence_ids[i]` and gives its counters before the step.

    Times are nanoseconds; `scheduled_at_ns` and `collected_at_ns` are of the monotonic clock and say when
    scheduling and collecting began, the others are durations. With two steps in flight the next step is
    scheduled and launched between this one's launch and its collect. `device_ns` is from the step's
    beginning on the device to its end; on a CPU, where launching computes, it is part of `launch_ns`.
    """

    step: int
    scheduled_at_ns: int
    num_waiting: int
    num_running: int
    num_blocks_used: int
    num_preempted: int
    num_scheduled: int  # tokens, the sum of num_scheduled_tokens
    sequence_ids: list[int]
    num_tokens: list[int]
    num_cached_tokens: list[int]
    num_scheduled_tokens: list[int]
    is_prefill: list[bool]
    num_generated: int = 0
    schedule_ns: int = 0
    launch_ns: int = 0
    collected_at_ns: int = 0
    collect_ns: int = 0
    commit_ns: int = 0
    device_ns: int = 0

    @property
    def tokens_at_ns(self) -> int:
        """When its tokens were on the host."""
        return self.collected_at_ns + self.collect_ns

    @property
    def was_awaited(self) -> bool:
        """Whether the host waited for the step's end, which is then known: it is `tokens_at_ns`."""
        return self.collect_ns > WAITED_NS


class StepLog:
    """Writes a file of a header and one line for each step, in the background."""

    def __init__(self, path: str | Path, config: Mapping[str, Any] | None = None) -> None:
        """`config` goes into the header: plain values only, and no secrets. Raises `ConfigError`."""
        self._writer = JsonlWriter(path, record_header(STEP_LOG_FORMAT, config))

    def write(self, entry: StepEntry) -> None:
        """Log a committed step; returns at once. The entry must not change afterwards."""
        self._writer.write(entry)

    def close(self) -> None:
        """Flush and close. Idempotent."""
        self._writer.close()


def read_step_log(path: str | Path) -> tuple[dict[str, Any], list[StepEntry]]:
    """The header and the steps. Raises `RecordFileError`."""
    header, rows = read_record_file(path, STEP_LOG_FORMAT)
    return header, [StepEntry(**row) for row in rows]
