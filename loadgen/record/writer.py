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

CHUNKS_AT_ONCE = 1024  # encoded in a fraction of a millisecond, which is as long as requests may have to wait


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
        self._results: list[RequestResult] = []  # to be written
        self._num_chunks = 0  # of those
        self._line({"type": "events", "schema": files.EVENTS_SCHEMA, "worker": worker})

    def add(self, result: RequestResult) -> None:
        """Keep a result until there are chunks enough to write, or `flush`."""
        self._results.append(result)
        self._num_chunks += len(result.chunk_ns)
        if self._num_chunks >= CHUNKS_AT_ONCE:
            self._write_results()

    def flush(self) -> None:
        self._write_results()
        self._chunks.flush()  # before the lines that point into it
        self._events.flush()

    def _write_results(self) -> None:
        results, self._results, self._num_chunks = self._results, [], 0
        data, places = encode_chunks((r.chunk_ns, r.chunk_tokens, r.chunk_bytes) for r in results)
        self._chunks.write(data)
        for result, place in zip(results, places, strict=True):
            at = {"chunks_at": self._chunks_at + place, "chunks": len(result.chunk_ns)}
            self._line({"type": "request", **result.to_row(), **at})
        self._chunks_at += len(data)

    def end(self, end: dict[str, Any]) -> None:
        """`end` has cpu_s, wall_s, interrupted, and max_stall_ns, the longest wait for the event loop."""
        self._write_results()
        self._line({"type": "end", **end})
        self._chunks.close()
        self._events.close()

    def _line(self, row: dict[str, Any]) -> None:
        self._events.write(orjson.dumps(row) + b"\n")
