"""Multi-turn sessions in AIPerf's extension of the Mooncake format.

A turn has `session_id`, the length and the blocks of what it adds to the conversation, and either `timestamp`
or `delay`, both in milliseconds; a delay counts from the end of the turn before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from loadgen.traces.blocks import read_hash_ids, with_block_size
from loadgen.traces.jsonl import first_object, read_rows, require, time_ns
from loadgen.traces.mooncake import NS_PER_MS
from loadgen.traces.records import RowError, Trace, TraceRow, positive_tokens, sorted_trace

NAME = "sessions"
DESCRIPTION = "session JSONL (session_id, timestamp or delay, input_length, output_length)"


def matches(first_line: str) -> bool:
    return {"session_id", "input_length", "output_length"} <= first_object(first_line).keys()


def read(lines: list[str], path: str) -> Trace:
    """Turns without a stamp stand at the arrival of their session."""
    dropped: Counter[str] = Counter()
    rows, block_size = with_block_size(read_rows(lines, _read_row, dropped), dropped)
    starts: dict[str | None, int] = {}
    turns: Counter[str | None] = Counter()
    placed = []
    for row in rows:
        starts.setdefault(row.session, row.arrival_ns)
        arrival_ns = row.arrival_ns if row.delay_ns is None else starts[row.session]
        placed.append(replace(row, turn=turns[row.session], arrival_ns=arrival_ns))
        turns[row.session] += 1
    return sorted_trace(placed, format=NAME, path=path, dropped=dropped, block_size=block_size)


def _read_row(row: dict[str, Any]) -> TraceRow:
    require(row, "session_id", "input_length", "output_length")
    if "timestamp" not in row and "delay" not in row:
        raise RowError("neither_timestamp_nor_delay")
    delay = row.get("delay")
    return TraceRow(
        arrival_ns=time_ns(row.get("timestamp", 0), NS_PER_MS),
        input_tokens=positive_tokens(row["input_length"], "input_length"),
        output_tokens=positive_tokens(row["output_length"], "output_length"),
        hash_ids=read_hash_ids(row.get("hash_ids")),
        session=str(row["session_id"]),
        delay_ns=None if delay is None else time_ns(delay, NS_PER_MS, "delay"),
    )
