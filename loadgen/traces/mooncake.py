"""Mooncake traces: one JSON object a line, milliseconds, with prefix block ids.

Format: https://github.com/kvcache-ai/Mooncake (FAST25-release/traces). Blocks are 512 tokens in Mooncake's
own files and smaller in other tools' output.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

from loadgen.traces.blocks import read_hash_ids, with_block_size
from loadgen.traces.jsonl import first_object, read_rows, require, time_ns
from loadgen.traces.records import RowError, Trace, TraceRow, positive_tokens, sorted_trace

NAME = "mooncake"
DESCRIPTION = "Mooncake JSONL (timestamp, input_length, output_length, hash_ids)"
COLUMNS = ("timestamp", "input_length", "output_length")
NS_PER_MS = 1_000_000
QUANTUM_MS = 1000  # stamps that are all further apart were rounded


def matches(first_line: str) -> bool:
    row = first_object(first_line)
    # `chat_id` marks a Bailian trace, which counts in seconds, and `session_id` one of sessions.
    return {"input_length", "output_length"} <= row.keys() and not {"chat_id", "session_id"} & row.keys()


def read(lines: list[str], path: str) -> Trace:
    dropped: Counter[str] = Counter()
    rows, block_size = with_block_size(read_rows(lines, _read_row, dropped), dropped)
    trace = sorted_trace(rows, format=NAME, path=path, dropped=dropped, block_size=block_size)
    stamps = sorted({row.arrival_ns for row in trace.rows})
    gaps_ms = [(after - before) / NS_PER_MS for before, after in pairwise(stamps)]
    if len(stamps) * 2 < len(rows) and min(gaps_ms, default=0) >= QUANTUM_MS:
        trace.notes.append(
            f"its time stamps are rounded to about {min(gaps_ms) / 1000:g} s, so requests come in bursts; "
            "--dejitter spreads them"
        )
    return trace


def _read_row(row: dict[str, Any]) -> TraceRow:
    if "session_id" in row:
        raise RowError("session_turn")
    require(row, *COLUMNS)
    return TraceRow(
        arrival_ns=time_ns(row["timestamp"], NS_PER_MS),
        input_tokens=positive_tokens(row["input_length"], "input_length"),
        output_tokens=positive_tokens(row["output_length"], "output_length"),
        hash_ids=read_hash_ids(row.get("hash_ids")),
    )
