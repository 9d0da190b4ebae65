"""Splits what a model writes into content and tool calls: what the parsers share."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from server.parsers.calls.call_reader import CallReader
from server.parsers.events import Content, Event

Tool = Mapping[str, Any]
"""A tool as clients send it: `{"type": "function", "function": {"name": ..., "parameters": {...}}}`."""


class ToolParser(ABC):
    """One for each choice. `push` text in pieces of any size, then call `finish` once.

    The events tell content and calls in their order. White space between calls is dropped.
    """

    tags: ClassVar[tuple[str, ...]] = ()
    """What the model writes around calls; tokens of this text must not be skipped as special."""

    call_starts: ClassVar[tuple[str, ...]] = ()
    """What only a call begins with: it ends reasoning even if its closing tag is missing."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._functions = {tool["function"]["name"]: tool["function"] for tool in tools}
        self._call: CallReader | None = None

    @staticmethod
    def new_call_id() -> str:
        return f"call_{secrets.token_hex(12)}"

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        position = 0
        while position < len(text):
            if self._call is None:
                position = self._read_between(text, position, events)
            else:
                position = self._call.push(text, position)
                events += self._call.take_events()
                if self._call.is_over:
                    call, self._call = self._call, None
                    self._on_end(call)
        return events

    def finish(self) -> list[Event]:
        """The text ends here."""
        if self._call is not None:
            return self._call.cut()
        rest = self._flush()
        return [Content(rest)] if rest else []

    @abstractmethod
    def _read_between(self, text: str, start: int, events: list[Event]) -> int:
        """Read what is no call, up to where a reader of one is made `_call`; returns the index after it."""

    @abstractmethod
    def _on_end(self, call: CallReader) -> None:
        """A call is over."""

    @abstractmethod
    def _flush(self) -> str:
        """Text that was held back, at the end."""
