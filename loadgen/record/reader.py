"""Reads the directory of a run, finished or killed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from loadgen.record import files
from loadgen.record.chunks import decode_chunks
from loadgen.record.result import RequestResult
from loadgen.schedule.request import Schedule


class RunError(ValueError):
    """The path is not the directory of a run; the message names it and says why."""


@dataclass(slots=True)
class Run:
    """A run as it was recorded. `ends` has an entry for each worker that came to its end."""

    path: str
    env: dict[str, Any]
    results: list[RequestResult]  # by index
    ends: list[dict[str, Any]] = field(default_factory=list)
    scrapes: list[dict[str, Any]] = field(default_factory=list)  # of the server's metrics, in order

    @property
    def name(self) -> str:
        return Path(self.path).resolve().name


def read_run(path: str | Path) -> Run:
    """Read a run's directory. Raises RunError."""
    directory = Path(path)
    env = read_env(directory)
    results: list[RequestResult] = []
    ends: list[dict[str, Any]] = []
    for worker in range(env.get("workers", 1)):
        results += _read_worker(directory, worker, ends)
    server = directory / files.SERVER
    scrapes = list(_json_lines(server)) if server.exists() else []
    return Run(str(path), env, sorted(results, key=lambda result: result.index), ends, scrapes)


def read_schedule(path: str | Path) -> Schedule:
    """The schedule of a run, from its directory or from a `schedule.jsonl` alone. Raises RunError."""
    file = Path(path)
    if file.is_dir():
        file = file / files.SCHEDULE
    try:
        return Schedule.from_rows(_json_lines(file))
    except (KeyError, TypeError, IndexError) as error:
        raise RunError(f"{file}: not a schedule: {error}") from None


def read_env(directory: Path) -> dict[str, Any]:
    """What was asked for and on what machine. Raises RunError."""
    path = directory / files.ENV
    try:
        env = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"{directory}: holds no run ({files.ENV} is missing)") from None
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise RunError(f"{path}: {error}") from error
    if not isinstance(env, dict) or env.get("schema") != files.ENV_SCHEMA:
        raise RunError(f"{path}: not the environment of a run ({files.ENV_SCHEMA})")
    return env


def _read_worker(directory: Path, worker: int, ends: list[dict[str, Any]]) -> Iterator[RequestResult]:
    path = files.events_path(directory, worker)
    if not path.exists():  # killed before it began
        return
    lines = _json_lines(path)
    if next(lines, {}).get("schema") != files.EVENTS_SCHEMA:
        raise RunError(f"{path}: not the events of a run ({files.EVENTS_SCHEMA})")
    chunk_data = files.chunks_path(directory, worker).read_bytes()
    for row in lines:
        kind = row.pop("type", None)
        if kind == "end":
            ends.append(row)
        elif kind == "request":
            result = _read_result(row, chunk_data, path)
            if result is not None:
                yield result


def _read_result(row: dict[str, Any], chunk_data: bytes, path: Path) -> RequestResult | None:
    """None if the run was killed before the request's chunks were on the disk."""
    try:
        chunks = decode_chunks(chunk_data, row.pop("chunks_at"), row.pop("chunks"))
        return None if chunks is None else RequestResult.from_row(row, chunks)
    except (KeyError, TypeError) as error:
        raise RunError(f"{path}: a line has not the fields of {files.EVENTS_SCHEMA}: {error}") from None


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a JSONL file. A killed run may have left half a last line, which is left out."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            if number < len(lines):
                raise RunError(f"{path}: line {number} is not JSON") from None
            return
        if not isinstance(row, dict):
            raise RunError(f"{path}: line {number} is not an object")
        yield row
