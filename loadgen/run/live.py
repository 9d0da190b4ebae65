"""What a user sees while requests run: lines that change on a terminal, elsewhere one now and then."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from loadgen.run.counters import Counters

PLAIN_INTERVAL_S = 10.0
LIVE_INTERVAL_S = 0.5


class LiveView:
    """`update` is cheap and may be called at any rate; `with` it, so that the terminal is left clean."""

    def __init__(self, total: int, counters: Counters, stream: TextIO = sys.stderr) -> None:
        self._total = total
        self._counters = counters
        self._stream = stream
        self.terminal = stream.isatty()
        self._began_s = self._shown_s = time.monotonic()
        self._lines = 0

    def __enter__(self) -> LiveView:
        self._began_s = self._shown_s = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._erase()

    def update(self) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s < (LIVE_INTERVAL_S if self.terminal else PLAIN_INTERVAL_S):
            return
        self._shown_s = now_s
        lines = self._text(now_s - self._began_s)
        if self.terminal:
            self._erase()
            self._lines = len(lines)
            self._stream.write("\n".join(lines) + "\n")
        else:
            self._stream.write(", ".join(lines) + "\n")
        self._stream.flush()

    def _erase(self) -> None:
        if self._lines:
            self._stream.write(f"\x1b[{self._lines}A\x1b[J")  # up so many lines, clear from there
            self._lines = 0

    def _text(self, elapsed_s: float) -> list[str]:
        total = self._counters.total
        finished, failed, tokens = total("finished"), total("failed"), total("output_tokens")
        flight = f"{total('in_flight')} in flight, {total('waiting')} held back, {failed} failed"
        rates = f"{total('sent') / elapsed_s:.1f} sent/s, {tokens / elapsed_s:.0f} tokens/s"
        p50, p99 = self._counters.ttft_ms(0.5), self._counters.ttft_ms(0.99)
        ttft = (
            ""
            if p50 is None or p99 is None
            else f"; TTFT p50 about {_rounded(p50)} ms, p99 {_rounded(p99)} ms"
        )
        lag = f"latest {self._counters.largest('max_lag_us') / 1000:.2f} ms behind the schedule"
        return [f"{elapsed_s:.0f} s: {finished}/{self._total} finished", flight, rates + ttft, lag]


def _rounded(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{float(f'{value:.3g}'):,g}"
