"""The event log: one JSON line for each finished request, with all its times.

The first line is a header (`record_header`). Every other line is a `RequestRecord`, field by field; times are
nanoseconds of the monotonic clock, which the header ties to the wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from engine.record.jsonl_writer import JsonlWriter
from engine.record.request_record import RequestRecord
from engine.version import __version__

EVENT_LOG_FORMAT = "octavo-event-log/1"


class RecordFileError(ValueError):
    """A log that cannot be read. The message names the file and the line."""


class EventLog:
    """A JSON line for each finished request, written by a thread of its own."""

    def __init__(self, path: str | Path, config: Mapping[str, Any] | None = None) -> None:
        """`config` goes into the header: plain values only, and no secrets. Raises `ConfigError`."""
        self._writer = JsonlWriter(path, record_header(EVENT_LOG_FORMAT, config))

    def write(self, record: RequestRecord) -> None:
        """Log a finished request; returns at once. The record must not change afterwards."""
        self._writer.write(record)

    def close(self) -> None:
        """Flush and close. Idempotent."""
        self._writer.close()


def record_header(file_format: str, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """wall_clock_ns and monotonic_ns are the same moment, so wall = time + wall_clock_ns - monotonic_ns."""
    return {
        "format": file_format,
        "octavo_version": __version__,
        "wall_clock_ns": time.time_ns(),
        "monotonic_ns": time.monotonic_ns(),
        "config": dict(config or {}),
    }


def read_event_log(path: str | Path) -> tuple[dict[str, Any], list[RequestRecord]]:
    """The header and the records. Raises `RecordFileError`."""
    header, rows = read_record_file(path, EVENT_LOG_FORMAT)
    return header, [RequestRecord(**row) for row in rows]


def read_record_file(path: str | Path, file_format: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the other lines of a log of the given format. Raises `RecordFileError`."""
    lines = list(_parsed_lines(Path(path)))
    if not lines or lines[0].get("format") != file_format:
        raise RecordFileError(f"{path}: line 1 is not the header of an {file_format} file")
    return lines[0], lines[1:]


def _parsed_lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        raw_lines = path.read_bytes().splitlines()
    except OSError as error:
        raise RecordFileError(f"{path}: {error.strerror}") from None
    for number, raw in enumerate(raw_lines, start=1):
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError:
            if number == len(raw_lines):  # the process was killed while it wrote
                return
            raise RecordFileError(f"{path}: line {number} is not JSON") from None
        if not isinstance(value, dict):
            raise RecordFileError(f"{path}: line {number} is not a JSON object")
        yield value
