"""Readers of public request traces: one module a format, chosen by what the file contains."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from loadgen.traces import azure, bailian, burstgpt, mooncake, servegen, sessions
from loadgen.traces.records import RowError, Trace, TraceError, TraceRow

__all__ = ["RowError", "Trace", "TraceError", "TraceRow", "read_trace"]


class TraceReader(Protocol):
    """What a module of this package that reads a format has."""

    DESCRIPTION: str

    def matches(self, first_line: str) -> bool: ...

    def read(self, lines: list[str], path: str) -> Trace: ...


READERS: tuple[TraceReader, ...] = (mooncake, sessions, bailian, azure, burstgpt)


def read_trace(
    path: str | Path, *, start_s: float = 0.0, duration_s: float | None = None, seed: int = 0
) -> Trace:
    """Read a trace file, its format detected from its first line, or a folder of ServeGen clients.

    The window and the seed are for ServeGen, whose requests are drawn; others are read whole.
    Raises TraceError if the file cannot be read, has no known format, or holds no usable row.
    """
    if Path(path).is_dir():
        return servegen.generate(Path(path), start_s=start_s, duration_s=duration_s, seed=seed)
    try:
        lines = Path(path).read_text(encoding="utf-8-sig", errors="replace").splitlines()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    first = next((line for line in lines if line.strip()), "")
    for reader in READERS:
        if reader.matches(first):
            return reader.read(lines, str(path))
    if servegen.matches(first):
        return servegen.generate(Path(path), start_s=start_s, duration_s=duration_s, seed=seed)
    known = ", ".join([*(reader.DESCRIPTION for reader in READERS), servegen.DESCRIPTION])
    raise TraceError(f"{path}: unknown trace format; known are {known}")
