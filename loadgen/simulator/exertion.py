"""How much a device has computed lately, which slows it down: it keeps within its power by a lower clock.

Found in the steps of an H200: those that follow prompts take up to a tenth longer than equal ones after a
rest, and of all ways to weigh what went before, the prompt rows of the last 50 ms or so explain it best.
"""

from __future__ import annotations

from math import exp

_MEMORY_NS = 50e6  # after so long a row counts 1/e
_FORGOTTEN_NS = 10 * _MEMORY_NS


class Exertion:
    """Prompt rows computed, weighed down by their age."""

    def __init__(self) -> None:
        self._rows = 0.0
        self._at_ns = 0

    def before(self, begin_ns: int) -> float:
        """As a step begins."""
        age_ns = begin_ns - self._at_ns
        if age_ns > _FORGOTTEN_NS:
            return 0.0
        return self._rows * exp(-age_ns / _MEMORY_NS)

    def add(self, end_ns: int, prompt_rows: int) -> None:
        """A step with so many has ended; steps are told in order."""
        self._rows = self.before(end_ns) + prompt_rows
        self._at_ns = end_ns
