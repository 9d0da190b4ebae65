"""BurstGPT: CSV with seconds, models and token counts; some files have two columns more, so names count.

Format: https://github.com/HPMLL/BurstGPT. A request without response tokens failed when it was recorded.
"""

from __future__ import annotations

import csv
from collections import Counter

from loadgen.traces.jsonl import time_ns
from loadgen.traces.records import RowError, Trace, TraceRow, positive_tokens, sorted_trace

NAME = "burstgpt"
DESCRIPTION = "BurstGPT CSV (Timestamp, Model, Request tokens, Response tokens)"
COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
LOG_TYPE = "Log Type"


def matches(first_line: str) -> bool:
    return set(COLUMNS) <= {name.strip() for name in first_line.split(",")}


def read(lines: list[str], path: str) -> Trace:
    dropped: Counter[str] = Counter()
    rows: list[TraceRow] = []
    for cells in csv.DictReader((line for line in lines if line.strip()), skipinitialspace=True):
        try:
            rows.append(_read_row(cells))
        except RowError as error:
            dropped[str(error)] += 1
    return sorted_trace(rows, format=NAME, path=path, dropped=dropped)


def _read_row(cells: dict[str, str | None]) -> TraceRow:
    stamp, request, response = (cells.get(name) for name in COLUMNS)
    if stamp is None or request is None or response is None:
        raise RowError("missing_column")
    if response.strip() == "0":
        raise RowError("failed_when_recorded")
    try:
        seconds = float(stamp)
    except ValueError:
        raise RowError("bad_Timestamp") from None
    return TraceRow(
        arrival_ns=time_ns(seconds, 1_000_000_000, "Timestamp"),
        input_tokens=positive_tokens(request, "Request tokens"),
        output_tokens=positive_tokens(response, "Response tokens"),
        request_class=(cells.get(LOG_TYPE) or "").removesuffix(" log").lower(),
    )
