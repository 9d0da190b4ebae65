"""Tells how the start-up comes along: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from tqdm import tqdm


class StartProgress:
    """Call it as `progress(phase, done, total)`; total 0 means that there is nothing to count.

    A new phase ends the one before, whose seconds are then told.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._began = time.monotonic()
        self._phase = ""
        self._phase_began = self._began
        self._bar: tqdm[Any] | None = None

    def __call__(self, phase: str, done: int = 0, total: int = 0) -> None:
        if phase != self._phase:
            self.finish_phase()
            self._phase, self._phase_began = phase, time.monotonic()
            if not self._stream.isatty():
                self._say(f"{phase} ...")
        if total and self._stream.isatty():
            self._show(done, total)

    def finish_phase(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if self._phase:
            self._say(f"{self._phase}: {time.monotonic() - self._phase_began:.1f} s")
        self._phase = ""

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began

    def _show(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = tqdm(
                desc=self._phase, total=total, file=self._stream, leave=False, dynamic_ncols=True
            )
        self._bar.update(done - self._bar.n)

    def _say(self, line: str) -> None:
        print(f"octavo: {line}", file=self._stream, flush=True)
