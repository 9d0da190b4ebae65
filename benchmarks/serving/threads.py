"""How busy each thread of the server is, from /proc: the front end and the engine share one interpreter."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ThreadTimes:
    """CPU seconds of a process's threads since this was made."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}/task")
        self._began, self._before = time.monotonic(), self._read()

    def _read(self) -> dict[tuple[str, str], float]:
        """By (thread id, name)."""
        seconds = {}
        for task in self._folder.iterdir():
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            user, system = rest.split()[11:13]
            seconds[task.name, name] = (int(user) + int(system)) / _TICKS_PER_S
        return seconds

    def busiest(self, count: int = 4) -> str:
        """Shares of one core, for instance "octavo 93 %, octavo-engine 41 %"."""
        elapsed = time.monotonic() - self._began
        shares = [
            (100 * (seconds - self._before.get(thread, 0.0)) / elapsed, thread[1])
            for thread, seconds in self._read().items()
        ]
        return ", ".join(f"{name} {share:.0f} %" for share, name in sorted(shares, reverse=True)[:count])
