"""The lengths of a trace's row: scaled, and kept within the caps."""

from __future__ import annotations

import math
from dataclasses import replace

from loadgen.schedule.options import ScheduleOptions
from loadgen.schedule.request import Schedule
from loadgen.traces.records import Trace, TraceError, TraceRow


def scale_lengths(row: TraceRow, trace: Trace, options: ScheduleOptions) -> TraceRow:
    """Raises TraceError where longer prompts would need prefix blocks that the trace does not have."""
    if options.input_scale == options.output_scale == 1.0:
        return row
    if options.input_scale > 1 and row.hash_ids is not None:
        raise TraceError(f"{trace.path}: --input-scale above 1 has no blocks to add to recorded prefixes")
    input_tokens = max(1, round(row.input_tokens * options.input_scale))
    output_tokens = max(1, round(row.output_tokens * options.output_scale))
    return _with_lengths(row, input_tokens, output_tokens, trace.block_size)


def cap_lengths(
    row: TraceRow, trace: Trace, options: ScheduleOptions, schedule: Schedule, history: int = 0
) -> TraceRow | None:
    """None if the row is dropped, else the row, shortened where clipping is on; the schedule counts both.

    `history` are the prompt's tokens before those of the row itself, which cannot be clipped.
    """
    most_input, most_output, room = (
        limit or math.inf
        for limit in (options.max_input_tokens, options.max_output_tokens, options.max_model_len)
    )
    reason = None
    if history + row.input_tokens > most_input:
        reason = "over_max_input_tokens"
    elif row.output_tokens > most_output:
        reason = "over_max_output_tokens"
    elif history + row.input_tokens + row.output_tokens > room:
        reason = "over_max_model_len"
    if reason is None:
        return row
    output_tokens = min(row.output_tokens, most_output, room - history - 1)
    input_tokens = min(row.input_tokens, most_input - history, room - history - output_tokens)
    if options.cap_mode == "drop" or min(input_tokens, output_tokens) < 1:
        schedule.dropped[reason] += 1
        return None
    schedule.clipped[reason] += 1
    return _with_lengths(row, int(input_tokens), int(output_tokens), trace.block_size)


def _with_lengths(row: TraceRow, input_tokens: int, output_tokens: int, block_size: int | None) -> TraceRow:
    hash_ids = row.hash_ids
    if hash_ids is not None and block_size is not None:
        hash_ids = hash_ids[: math.ceil(input_tokens / block_size)]
    return replace(row, input_tokens=input_tokens, output_tokens=output_tokens, hash_ids=hash_ids)
