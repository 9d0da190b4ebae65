"""Mooncake traces: one JSON object a line, milliseconds, with prefix block ids.

Format: https://github.com/kvcache-ai/Mooncake (FAST25-release/traces). `hash_ids` has one id per block of
prompt tokens; an id names the block and all that precedes it. Blocks are 512 tokens in Mooncake's own files
and smaller in other tools' output, so the size is taken from the rows.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import orjson

from loadgen.traces.records import RowError, Trace, TraceRow, positive_tokens, sorted_trace

NAME = "mooncake"
DESCRIPTION = "Mooncake JSONL (timestamp, input_length, output_length, hash_ids)"
COLUMNS = ("timestamp", "input_length", "output_length")
LAST_MS = 100 * 366 * 24 * 3600 * 1000  # a century; later stamps are damaged
BLOCK_SIZES = (512, 256, 128, 64, 32, 16)  # the first that fits the most rows wins


def matches(first_line: str) -> bool:
    try:
        row = orjson.loads(first_line)
    except orjson.JSONDecodeError:
        return False
    # `chat_id` marks a Bailian trace, which counts in seconds.
    return isinstance(row, dict) and {"input_length", "output_length"} <= row.keys() and "chat_id" not in row


def read(lines: list[str], path: str) -> Trace:
    """Read all rows. Rows that cannot be replayed alone (turns of a session) are dropped by name."""
    rows: list[TraceRow] = []
    dropped: Counter[str] = Counter()
    for line in filter(str.strip, lines):
        try:
            rows.append(_read_row(line))
        except RowError as error:
            dropped[str(error)] += 1
    block_size = _block_size(rows)
    if block_size is not None:
        fitting = [row for row in rows if _fits(row, block_size)]
        dropped["hash_ids_mismatch"] += len(rows) - len(fitting)
        rows = fitting
    return sorted_trace(rows, format=NAME, path=path, dropped=+dropped, block_size=block_size)


def _read_row(line: str) -> TraceRow:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise RowError("not_json") from None
    if not isinstance(row, dict):
        raise RowError("not_an_object")
    if "session_id" in row:
        raise RowError("session_turn")
    for column in COLUMNS:
        if column not in row:
            raise RowError(f"missing_{column}")
    return TraceRow(
        arrival_ns=_arrival_ns(row["timestamp"]),
        input_tokens=positive_tokens(row["input_length"], "input_length"),
        output_tokens=positive_tokens(row["output_length"], "output_length"),
        hash_ids=_hash_ids(row.get("hash_ids")),
    )


def _arrival_ns(milliseconds: Any) -> int:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        raise RowError("bad_timestamp")
    if not 0 <= milliseconds <= LAST_MS:
        raise RowError("bad_timestamp")
    return round(milliseconds * 1_000_000)


def _hash_ids(ids: Any) -> tuple[int, ...] | None:
    if ids is None:
        return None
    if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise RowError("bad_hash_ids")
    return tuple(ids)


def _fits(row: TraceRow, block_size: int) -> bool:
    return row.hash_ids is None or len(row.hash_ids) == math.ceil(row.input_tokens / block_size)


def _block_size(rows: list[TraceRow]) -> int | None:
    """The block size that explains the most rows; None if no row has hash ids."""
    with_ids = [row for row in rows if row.hash_ids is not None]
    if not with_ids:
        return None
    return max(BLOCK_SIZES, key=lambda size: sum(_fits(row, size) for row in with_ids))
