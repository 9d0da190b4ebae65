"""Azure LLM inference traces: CSV with a date-time and two token counts, no prefix information.

Format: https://github.com/Azure/AzurePublicDataset. The 2023 stamps have seven decimals and no time zone,
the 2024 ones six decimals and `+00:00`; columns are found by name.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from datetime import UTC, datetime

from loadgen.traces.records import RowError, Trace, TraceRow, positive_tokens, sorted_trace

NAME = "azure"
DESCRIPTION = "Azure LLM inference CSV (TIMESTAMP, ContextTokens, GeneratedTokens)"
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def matches(first_line: str) -> bool:
    return set(COLUMNS) <= {name.strip() for name in first_line.split(",")}


def read(lines: list[str], path: str) -> Trace:
    """Read all rows; the arrival of the earliest one is the start of the trace."""
    table = csv.reader(line for line in lines if line.strip())
    header = [name.strip() for name in next(table)]
    places = [header.index(name) for name in COLUMNS]
    rows: list[TraceRow] = []
    dropped: Counter[str] = Counter()
    for cells in table:
        try:
            rows.append(_read_row(cells, places))
        except RowError as error:
            dropped[str(error)] += 1
    start = min((row.arrival_ns for row in rows), default=0)
    rows = [TraceRow(row.arrival_ns - start, row.input_tokens, row.output_tokens) for row in rows]
    return sorted_trace(rows, format=NAME, path=path, dropped=dropped)


def _read_row(cells: list[str], places: list[int]) -> TraceRow:
    if len(cells) <= max(places):
        raise RowError("missing_column")
    stamp, context, generated = (cells[place] for place in places)
    return TraceRow(
        arrival_ns=_stamp_ns(stamp.strip()),
        input_tokens=positive_tokens(context, "ContextTokens"),
        output_tokens=positive_tokens(generated, "GeneratedTokens"),
    )


def _stamp_ns(stamp: str) -> int:
    """Nanoseconds since 1970. Done by hand below the second, since `%f` stops at six decimals."""
    match = STAMP.fullmatch(stamp)
    if match is None:
        raise RowError("bad_timestamp")
    seconds, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(seconds + (zone or ""))
    except ValueError:
        raise RowError("bad_timestamp") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000_000 + int((fraction or "0").ljust(9, "0"))
