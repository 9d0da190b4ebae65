"""How much a device has computed lately, which slows it down: it keeps within its power by a lower clock.

Found in the steps of an H200: those that follow prompts take up to a tenth longer than equal ones after a
rest, and of all ways to weigh what went before, the share of the last 50 ms or so that went into prompts
explains it best.
"""

from __future__ import annotations

from math import exp

_MEMORY_NS = 50e6  # after so long a moment counts 1/e
_FORGOTTEN_NS = 10 * _MEMORY_NS


class Exertion:
    """The share of the time that the device computed prompts, moments weighed down by their age: 0 to 1."""

    def __init__(self) -> None:
        self._share = 0.0
        self._at_ns = 0

    def before(self, begin_ns: int) -> float:
        """As a step begins."""
        age_ns = begin_ns - self._at_ns
        if age_ns > _FORGOTTEN_NS:
            return 0.0
        return self._share * exp(-age_ns / _MEMORY_NS)

    def add(self, begin_ns: int, end_ns: int) -> None:
        """A step with prompts has ended; such steps are told in order."""
        self._share = 1 - (1 - self.before(begin_ns)) * exp((begin_ns - end_ns) / _MEMORY_NS)
        self._at_ns = end_ns
