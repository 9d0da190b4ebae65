"""Qwen-Bailian traces: one JSON object a line, seconds, with blocks of 16 tokens.

Format: https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon. `input_length` and `hash_ids` are of the
whole prompt of a turn, history included, so that each row can be replayed alone at its recorded time.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from loadgen.traces.blocks import read_hash_ids, with_block_size
from loadgen.traces.jsonl import first_object, read_rows, require, time_ns
from loadgen.traces.records import Trace, TraceRow, positive_tokens, sorted_trace

NAME = "bailian"
DESCRIPTION = "Qwen-Bailian JSONL (chat_id, timestamp, input_length, output_length, hash_ids)"
COLUMNS = ("timestamp", "input_length", "output_length")
BLOCK_SIZE = 16


def matches(first_line: str) -> bool:
    return {"chat_id", *COLUMNS} <= first_object(first_line).keys()


def read(lines: list[str], path: str) -> Trace:
    dropped: Counter[str] = Counter()
    rows, block_size = with_block_size(read_rows(lines, _read_row, dropped), dropped, (BLOCK_SIZE,))
    return sorted_trace(rows, format=NAME, path=path, dropped=dropped, block_size=block_size)


def _read_row(row: dict[str, Any]) -> TraceRow:
    require(row, *COLUMNS)
    return TraceRow(
        arrival_ns=time_ns(row["timestamp"], 1_000_000_000),
        input_tokens=positive_tokens(row["input_length"], "input_length"),
        output_tokens=positive_tokens(row["output_length"], "output_length"),
        hash_ids=read_hash_ids(row.get("hash_ids")),
        request_class=str(row.get("type", "")),
    )
