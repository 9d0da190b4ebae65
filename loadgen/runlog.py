"""The log of a run: JSON lines, written as requests end, so that a killed run leaves a valid partial log.

The first line has type "run" (what was asked for), then one line of type "request" each, in order of their
end, and a last line of type "end", which is missing if the run was killed.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import orjson

from loadgen.measure import RequestResult

SCHEMA = "octavo.loadgen.log/1"


class RunLogError(ValueError):
    """The file is not the log of a run; the message names it and says why."""


class RunLog:
    """Writes a log; with no path, does nothing. Raises OSError if the file cannot be made."""

    def __init__(self, path: str | None, run: dict[str, Any]) -> None:
        self._file: IO[bytes] | None = open(path, "wb") if path else None  # noqa: SIM115 - closed in `end`
        self._write(orjson.dumps({"type": "run", **run}))

    def add(self, result: RequestResult) -> None:
        if self._file is not None:
            self._write(result.to_json())

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def end(self, end: dict[str, Any]) -> None:
        self._write(orjson.dumps({"type": "end", **end}))
        if self._file is not None:
            self._file.close()

    def _write(self, line: bytes) -> None:
        if self._file is not None:
            self._file.write(line + b"\n")


def read_run_log(path: str | Path) -> tuple[dict[str, Any], list[RequestResult], dict[str, Any]]:
    """Read (run, results by index, end). `end` is empty if the run was killed. Raises RunLogError."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise RunLogError(f"{path}: {error.strerror}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            if number < len(lines):  # a killed run may have half a last line
                raise RunLogError(f"{path}: line {number} is not JSON") from None
    if not rows or not isinstance(rows[0], dict) or rows[0].get("schema") != SCHEMA:
        raise RunLogError(f"{path}: not a log of `octavo replay --output` ({SCHEMA})")
    try:
        results = [RequestResult.from_json(row) for row in rows if row["type"] == "request"]
    except (KeyError, TypeError) as error:
        raise RunLogError(f"{path}: a request line has not the fields of {SCHEMA}: {error}") from None
    end = rows[-1] if rows[-1]["type"] == "end" else {}
    return rows[0], sorted(results, key=lambda result: result.index), end
