"""Readers of a single tool call: what they share."""

from __future__ import annotations

from abc import ABC, abstractmethod

from server.parsers.events import CallArguments, CallCut, CallStart, Content, Event


class CallReader(ABC):
    """Reads one call from its first character on; `prefix` is what stood in front of it and belongs to it.

    The call is told as soon as its name is certain, its arguments as they come. A reader ends up complete, or
    broken: what it read is no call, none was told, and its text is content.
    """

    def __init__(self, prefix: str = "") -> None:
        self.is_complete = False
        self.is_broken = False
        self._is_started = False
        self._has_all_arguments = False
        self._raw = [prefix]
        self._events: list[Event] = []

    @property
    def is_over(self) -> bool:
        return self.is_complete or self.is_broken

    def push(self, text: str, start: int) -> int:
        """Read on; returns the index of the first character that was not read, which is after the call."""
        position = start
        while position < len(text) and not self.is_over:
            position = self._read(text, position)
        self._raw.append(text[start:position])
        return position

    def take_events(self) -> list[Event]:
        """What has become known since the last call."""
        if self.is_broken:
            return [Content("".join(self._raw))]
        events, self._events = self._events, []
        return events

    def cut(self) -> list[Event]:
        """The text ended within the call: nothing is missing if all arguments are there.

        A call that was not told yet is content.
        """
        if self._is_started and self._has_all_arguments:
            return []
        raw = "".join(self._raw)
        return [CallCut(raw) if self._is_started else Content(raw)]

    @abstractmethod
    def _read(self, text: str, start: int) -> int:
        """Read some of `text`, or move on to another state; returns the index after what was read."""

    def _start(self, name: str) -> None:
        self._is_started = True
        self._events.append(CallStart(name))

    def _add_arguments(self, text: str) -> None:
        if text:
            self._events.append(CallArguments(text))

    def _break(self) -> None:
        """A fault after the start is passed over: what was told cannot be taken back."""
        self.is_complete = self._is_started
        self.is_broken = not self._is_started
