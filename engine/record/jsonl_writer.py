"""Append-only JSON lines, encoded and written by a thread of their own, so that the caller never waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO, Literal

import orjson

from engine.config import ConfigError

logger = logging.getLogger(__name__)

# The writer lets lines gather: one that woke for each would fight the engine thread for the interpreter.
GATHER_SECONDS = 0.05

_CLOSE = object()


def check_writable(path: str | Path) -> None:
    """Raise `ConfigError` for a file that could not be written; what it holds stays."""
    _opened(Path(path), "ab").close()


class JsonlWriter:
    """One JSON value a line. `write` may be called from any thread and returns at once."""

    def __init__(self, path: str | Path, header: dict[str, Any]) -> None:
        """Create or truncate the file and write `header` as its first line. Raises `ConfigError`."""
        self.path = Path(path)
        self._file = _opened(self.path, "wb")
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._failed = False
        self._write_lines([header])
        self._thread = threading.Thread(target=self._run, name=f"octavo-{self.path.name}", daemon=True)
        self._thread.start()

    def write(self, value: Any) -> None:
        """Queue a JSON value or a dataclass; it must not change any more."""
        self._queue.put(value)

    def close(self) -> None:
        """Write what is queued and close the file. Idempotent; what is written later is dropped."""
        self._queue.put(_CLOSE)
        self._thread.join()

    def _run(self) -> None:
        closing = False
        while not closing:
            values = [self._queue.get()]
            time.sleep(GATHER_SECONDS)
            while not self._queue.empty():
                values.append(self._queue.get())
            closing = any(value is _CLOSE for value in values)
            self._write_lines([value for value in values if value is not _CLOSE])
        self._attempt(self._file.close)

    def _write_lines(self, values: list[Any]) -> None:
        for value in values:
            self._attempt(partial(self._write_line, value))
        self._attempt(self._file.flush)

    def _write_line(self, value: Any) -> None:
        self._file.write(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))

    def _attempt(self, action: Callable[[], object]) -> None:
        """A full disk must not stop the serving: it is told once, and later lines may still get through."""
        try:
            action()
        except (OSError, orjson.JSONEncodeError) as error:
            if not self._failed:
                logger.error("lines of %s are lost: %s", self.path, error)
            self._failed = True


def _opened(path: Path, mode: Literal["ab", "wb"]) -> BinaryIO:
    try:
        return path.open(mode)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
