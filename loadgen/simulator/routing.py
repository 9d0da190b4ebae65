"""Which replica gets a request. A router knows what it has sent where and what has been answered, no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

_IMBALANCE = 1.25  # a replica that owns the prefix is passed by once its load is so far above the mean
_SLACK = 2


class Router(Protocol):
    def choose(self, loads: list[int], block_hashes: list[bytes]) -> int:
        """The place of a replica. `loads[i]` are the unanswered requests of replica i."""
        ...


class RoundRobin:
    def __init__(self) -> None:
        self._next = -1

    def choose(self, loads: list[int], block_hashes: list[bytes]) -> int:
        self._next = (self._next + 1) % len(loads)
        return self._next


class LeastLoaded:
    """The replica with the fewest unanswered requests; among equals they take turns."""

    def __init__(self) -> None:
        self._last = -1

    def choose(self, loads: list[int], block_hashes: list[bytes]) -> int:
        least, after = min(loads), self._last + 1
        try:
            self._last = loads.index(least, after)
        except ValueError:
            self._last = loads.index(least)
        return self._last


class PrefixAffinity:
    """The replica that was sent the longest known prefix, unless it has far more to do than the others."""

    def __init__(self) -> None:
        self._owner: dict[bytes, int] = {}
        self._least_loaded = LeastLoaded()

    def choose(self, loads: list[int], block_hashes: list[bytes]) -> int:
        chosen = self._owner_of_prefix(block_hashes)
        bound = sum(loads) / len(loads) * _IMBALANCE + _SLACK
        if chosen is None or loads[chosen] > bound:
            chosen = self._least_loaded.choose(loads, block_hashes)
        for digest in block_hashes:
            self._owner[digest] = chosen
        return chosen

    def _owner_of_prefix(self, block_hashes: list[bytes]) -> int | None:
        owner = None
        for digest in block_hashes:
            found = self._owner.get(digest)
            if found is None:
                break
            owner = found
        return owner


ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix-affinity": PrefixAffinity,
}
