"""Ends a text at the first stop string, without sending a part of one."""

from __future__ import annotations

from collections.abc import Sequence


def growing_start(text: str, strings: Sequence[str]) -> int:
    """Where the longest end of `text` starts that begins, but does not complete, one of `strings`."""
    earliest = len(text)
    for string in strings:
        start = text.find(string[0], max(0, len(text) - len(string) + 1))
        while 0 <= start < earliest:
            if string.startswith(text[start:]):
                earliest = start
            start = text.find(string[0], start + 1)
    return earliest


class StopStringMatcher:
    """Looks for stop strings in a growing text. A sequence without any needs no matcher.

    The match with the earliest start wins, wherever the text is cut into pushes; of those with the same
    start, the one listed first. So text is held back while a stop string may still be growing at its end:
    at most `max(map(len, stops)) - 1` characters. If a stop string is already complete and an earlier one
    may still be growing around it, the decision waits for the next push.
    """

    __slots__ = (
        "_first_characters",
        "_held",
        "_include_in_output",
        "_stops",
        "_unsearched",
    )

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._stops = tuple(stops)
        self._include_in_output = include_in_output
        self._first_characters = frozenset(stop[0] for stop in stops)
        self._held = ""
        self._unsearched = 0  # characters of `_held` that no match may end in

    def push(self, text: str, *, search: bool = True) -> tuple[str, str | None]:
        """Add `text`; returns the text that may be sent now and the stop string that was found, if any.

        After a find the text is complete and the matcher is done. With `search` false, for the tokens before
        `min_tokens`, no match may end within `text`, but one may begin in it.
        """
        if not self._held and self._first_characters.isdisjoint(text):
            return text, None  # most pushes: nothing here begins a stop string
        buffer = self._held + text
        growing = growing_start(buffer, self._stops)
        if search:
            start, stop = self._find(buffer)
            if stop is not None and start <= growing:
                return self._finish(buffer, start, stop)
        self._held = buffer[growing:]
        self._unsearched = max(0, self._unsearched - growing) if search else len(self._held)
        return buffer[:growing], None

    def flush(self) -> tuple[str, str | None]:
        """The text ends here for another reason: what was held back, and the stop string it holds, if any."""
        start, stop = self._find(self._held)
        if stop is not None:
            return self._finish(self._held, start, stop)
        text, self._held = self._held, ""
        return text, None

    def _finish(self, buffer: str, start: int, stop: str) -> tuple[str, str]:
        self._held = ""
        return buffer[: start + len(stop)] if self._include_in_output else buffer[:start], stop

    def _find(self, buffer: str) -> tuple[int, str | None]:
        """Earliest start of a complete stop string that ends after the unsearched part."""
        best_start, best_stop = len(buffer), None
        for stop in self._stops:
            start = buffer.find(stop, max(0, self._unsearched - len(stop) + 1))
            if 0 <= start < best_start:
                best_start, best_stop = start, stop
        return best_start, best_stop
