"""What a user sees of work that takes long: lines that change on a terminal, elsewhere one now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

PLAIN_INTERVAL_S = 10.0
LIVE_INTERVAL_S = 0.5


class StatusLines:
    """`update` is cheap and may be called at any rate; `with` it, so that the terminal is left clean."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.terminal = self._stream.isatty()
        self._interval_s = LIVE_INTERVAL_S if self.terminal else PLAIN_INTERVAL_S
        self._began_s = self._shown_s = time.monotonic()
        self._lines = 0

    def __enter__(self) -> StatusLines:
        self._began_s = self._shown_s = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.erase()

    def update(self, lines: Callable[[float], list[str]]) -> None:
        """Show `lines(seconds since the start)`, if it is time to."""
        now_s = time.monotonic()
        if now_s - self._shown_s < self._interval_s:
            return
        self._shown_s = now_s
        shown = lines(now_s - self._began_s)
        if self.terminal:
            self.erase()
            self._lines = len(shown)
            self._stream.write("\n".join(shown) + "\n")
        else:
            self._stream.write(", ".join(shown) + "\n")
        self._stream.flush()

    def erase(self) -> None:
        """Make room on a terminal for something else."""
        if self._lines:
            self._stream.write(f"\x1b[{self._lines}A\x1b[J")  # up so many lines, clear from there
            self._stream.flush()
            self._lines = 0
