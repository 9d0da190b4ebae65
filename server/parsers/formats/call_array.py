"""Tool calls in a JSON array, `[{"name": ..., "arguments": {...}}, ...]`."""

from __future__ import annotations

from collections.abc import Iterable

from server.parsers.calls.call_reader import CallReader
from server.parsers.calls.json_call import SPACE, JsonCall
from server.parsers.events import Content, Event
from server.parsers.tool_parser import Tool, ToolParser


class CallArray(ToolParser):
    """For answers that a grammar holds to nothing but such an array; anything else is content."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        super().__init__(tools)
        self._gap: list[str] = []  # brackets, commas and white space since the last call
        self._has_calls = False

    def _read_between(self, text: str, start: int, events: list[Event]) -> int:
        character = text[start]
        self._gap.append(character)
        if character in SPACE + "[],":
            return start + 1
        gap, self._gap = "".join(self._gap), []
        if character == "{":
            self._call = JsonCall(gap)
        else:
            events.append(Content(gap))
        return start + 1

    def _on_end(self, call: CallReader) -> None:
        self._has_calls |= call.is_complete

    def _flush(self) -> str:
        return "" if self._has_calls else "".join(self._gap)
