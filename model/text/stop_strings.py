"""Ends a text at the first stop string, without sending a part of one."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache


class StopStringMatcher:
    """Looks for stop strings in a growing text. A sequence without any needs no matcher.

    The match with the earliest start wins, wherever the text is cut into pushes; of those with the same
    start, the one listed first. So text is held back while a stop string may still be growing at its end:
    at most `max(map(len, stops)) - 1` characters. If a stop string is already complete and an earlier one
    may still be growing around it, the decision waits for the next push.

    Each character is looked at once for each stop string, by the algorithm of Knuth, Morris and Pratt: the
    event loop does this, and no stop string may make it slow.
    """

    __slots__ = (
        "_best",
        "_first_characters",
        "_grown",
        "_held",
        "_include_in_output",
        "_stops",
    )

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._stops = tuple(stops)
        self._include_in_output = include_in_output
        self._first_characters = frozenset(stop[0] for stop in stops)
        self._held = ""
        self._grown = [0] * len(stops)  # of each stop string, the characters that the text ends in
        self._best: tuple[int, int] | None = None  # a match: its start in `_held`, its place among the stops

    def push(self, text: str, *, search: bool = True) -> tuple[str, str | None]:
        """Add `text`; returns the text that may be sent now and the stop string that was found, if any.

        After a find the text is complete and the matcher is done. With `search` false, for the tokens before
        `min_tokens`, no match may end within `text`, but one may begin in it.
        """
        if not self._held and self._first_characters.isdisjoint(text):
            return text, None  # most pushes: nothing here begins a stop string
        buffer = self._held + text
        for place, stop in enumerate(self._stops):
            self._grown[place], end = _grow(stop, self._grown[place], text)
            if end is not None and search:
                match = len(self._held) + end - len(stop), place
                self._best = match if self._best is None else min(self._best, match)
        growing = len(buffer) - max(self._grown)
        if self._best is not None:
            start, place = self._best
            if start <= growing:
                return self._finish(buffer, start, self._stops[place])
            self._best = start - growing, place
        self._held = buffer[growing:]
        return buffer[:growing], None

    def flush(self) -> tuple[str, str | None]:
        """The text ends here for another reason: what was held back, and the stop string it holds, if any."""
        if self._best is not None:
            start, place = self._best
            return self._finish(self._held, start, self._stops[place])
        text, self._held = self._held, ""
        return text, None

    def _finish(self, buffer: str, start: int, stop: str) -> tuple[str, str]:
        self._held = ""
        return buffer[: start + len(stop)] if self._include_in_output else buffer[:start], stop


def _grow(stop: str, grown: int, text: str) -> tuple[int, int | None]:
    """Go on with `text` where its first `grown` characters had been seen: how many of them are at the end
    now, all of them never, and where in `text` the first match ends, if there is one."""
    borders = _borders(stop)
    end = None
    for index, character in enumerate(text, 1):
        while grown and stop[grown] != character:
            grown = borders[grown - 1]
        grown += stop[grown] == character
        if grown == len(stop):
            grown = borders[grown - 1]
            end = end or index
    return grown, end


@lru_cache(maxsize=256)
def _borders(stop: str) -> array[int]:
    """For each start of `stop`, the length of the longest shorter one that it ends in."""
    borders = array("i", [0])
    length = 0
    for character in stop[1:]:
        while length and stop[length] != character:
            length = borders[length - 1]
        length += stop[length] == character
        borders.append(length)
    return borders
