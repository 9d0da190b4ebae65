"""What the readers of JSON-lines traces share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from loadgen.traces.records import RowError, TraceRow

LAST_S = 100 * 366 * 24 * 3600  # a century; later stamps are damaged


def first_object(line: str) -> dict[str, Any]:
    """The object on a line; an empty one if there is none."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return row if isinstance(row, dict) else {}


def read_rows(
    lines: Iterable[str], read_row: Callable[[dict[str, Any]], TraceRow], dropped: Counter[str]
) -> list[TraceRow]:
    """Rows that can be used; the others are counted in `dropped` by the reason that `read_row` raises."""
    rows: list[TraceRow] = []
    for line in filter(str.strip, lines):
        try:
            rows.append(read_row(_object(line)))
        except RowError as error:
            dropped[str(error)] += 1
    return rows


def require(row: dict[str, Any], *columns: str) -> None:
    """Raises RowError `missing_NAME`."""
    for column in columns:
        if column not in row:
            raise RowError(f"missing_{column}")


def time_ns(value: Any, unit_ns: int, name: str = "timestamp") -> int:
    """Read a time since the start of the trace. Raises RowError `bad_NAME`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RowError(f"bad_{name}")
    if not 0 <= value <= LAST_S * 1_000_000_000 / unit_ns:
        raise RowError(f"bad_{name}")
    return round(value * unit_ns)


def _object(line: str) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise RowError("not_json") from None
    if not isinstance(row, dict):
        raise RowError("not_an_object")
    return row
