"""What a user sees while requests run: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from tqdm import tqdm

PLAIN_INTERVAL_S = 10.0


class Progress:
    """`update` is cheap and may be called at any rate."""

    def __init__(self, total: int, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._total = total
        self._shown_s = time.monotonic()
        self._bar = tqdm(total=total, unit="req", file=stream, leave=False) if stream.isatty() else None

    def update(self, *, finished: int, failed: int, in_flight: int, waiting: int) -> None:
        if self._bar is not None:
            self._bar.n = finished
            self._bar.set_postfix_str(f"{in_flight} in flight, {waiting} queued, {failed} failed")
        elif time.monotonic() - self._shown_s >= PLAIN_INTERVAL_S:
            self._shown_s = time.monotonic()
            counts = f"{in_flight} in flight, {waiting} queued, {failed} failed"
            print(f"{finished}/{self._total} finished, {counts}", file=self._stream, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
