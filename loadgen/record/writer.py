"""Writes the directory of a run while it runs, so that a killed run leaves a valid partial record."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from loadgen.record import files
from loadgen.record.chunks import encode_chunks
from loadgen.record.result import RequestResult
from loadgen.schedule.request import ScheduledRequest


def prepare_directory(path: str | Path) -> Path:
    """Make the directory. Raises ValueError if it has a run in it, or cannot be made."""
    directory = Path(path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    if (directory / files.ENV).exists():
        raise ValueError(f"{path}: there is a run in it already")
    return directory


def write_intent(directory: Path, env: dict[str, Any], requests: Iterable[ScheduledRequest]) -> None:
    """Write what does not depend on how the run goes: `env.json` and `schedule.jsonl`."""
    content = {"schema": files.ENV_SCHEMA, **env}
    (directory / files.ENV).write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    with open(directory / files.SCHEDULE, "wb") as file:
        file.writelines(orjson.dumps(request.to_row()) + b"\n" for request in requests)


class RunWriter:
    """Writes the results of one worker. Raises OSError if a file cannot be made."""

    def __init__(self, directory: Path, worker: int = 0) -> None:
        self._events = open(files.events_path(directory, worker), "wb")  # noqa: SIM115 - closed in `end`
        self._chunks = open(files.chunks_path(directory, worker), "wb")  # noqa: SIM115
        self._chunks_at = 0
        self._line({"type": "events", "schema": files.EVENTS_SCHEMA, "worker": worker})

    def add(self, result: RequestResult) -> None:
        data = encode_chunks(result.chunk_ns, result.chunk_tokens, result.chunk_bytes)
        self._chunks.write(data)
        row = {"type": "request", **result.to_row()}
        self._line(row | {"chunks_at": self._chunks_at, "chunks": len(result.chunk_ns)})
        self._chunks_at += len(data)

    def flush(self) -> None:
        self._chunks.flush()  # before the lines that point into it
        self._events.flush()

    def end(self, end: dict[str, Any]) -> None:
        """`end` has cpu_s, wall_s, interrupted, and max_stall_ns, the longest wait for the event loop."""
        self._line({"type": "end", **end})
        self._chunks.close()
        self._events.close()

    def _line(self, row: dict[str, Any]) -> None:
        self._events.write(orjson.dumps(row) + b"\n")
