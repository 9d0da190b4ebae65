"""Prefix block ids, as Mooncake's traces have them and others took over from there.

There is one id per block of prompt tokens; an id names the block and all that precedes it. The size of a
block is not written in the files, so it is taken from the rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from loadgen.traces.records import RowError, TraceRow

SIZES = (512, 256, 128, 64, 32, 16)  # the first that fits the most rows wins


def read_hash_ids(ids: Any) -> tuple[int, ...] | None:
    """Raises RowError `bad_hash_ids` unless they are whole numbers from 0, or absent."""
    if ids is None:
        return None
    if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise RowError("bad_hash_ids")
    return tuple(ids)


def with_block_size(
    rows: Sequence[TraceRow], dropped: Counter[str], sizes: Sequence[int] = SIZES
) -> tuple[list[TraceRow], int | None]:
    """(rows, block size), without rows whose ids do not fit their length; None if no row has ids."""
    with_ids = [row for row in rows if row.hash_ids is not None]
    if not with_ids:
        return list(rows), None
    size = max(sizes, key=lambda size: sum(_fits(row, size) for row in with_ids))
    fitting = [row for row in rows if _fits(row, size)]
    if len(fitting) < len(rows):
        dropped["hash_ids_mismatch"] += len(rows) - len(fitting)
    return fitting, size


def _fits(row: TraceRow, block_size: int) -> bool:
    return row.hash_ids is None or len(row.hash_ids) == math.ceil(row.input_tokens / block_size)
