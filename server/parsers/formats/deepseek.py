"""Tool calls of DeepSeek's models and of those distilled from R1, within tags that are tokens of their own.

V3 and R1 write `function`, a separator, the name, and the arguments in a fenced block; V3.1 writes the name,
a separator, and the bare arguments. What follows the separator tells which it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from server.parsers.calls.call_reader import CallReader
from server.parsers.calls.headed_call import HeadedCall
from server.parsers.events import Content, Event
from server.parsers.text_until import TextUntil
from server.parsers.tool_parser import Tool, ToolParser

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
FENCE = "```"


class DeepseekCall(HeadedCall):
    """Begins after the tag that opens a call."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self._first, self._second = "", ""  # before the separator, and between it and the arguments
        self._first_end = TextUntil((SEPARATOR, CALL_END))
        self._second_end = TextUntil(("{", CALL_END))

    def _read_head(self, text: str, start: int) -> int:
        before, mark, position = self._first_end.push(text, start)
        self._first += before
        if mark == SEPARATOR:
            self._read_next = self._read_second
        elif mark == CALL_END:
            self._break()
        return position

    def _read_second(self, text: str, start: int) -> int:
        before, mark, position = self._second_end.push(text, start)
        self._second += before
        if mark == "{":
            name, _, _ = self._second.partition(FENCE)
            self._begin_arguments(name if name.strip() else self._first)
        elif mark == CALL_END:
            self._break()
        return position


class DeepseekParser(ToolParser):
    """Forgiving where the tags around all calls, or the one that closes a call, are missing."""

    tags = (CALLS_BEGIN, CALL_BEGIN, SEPARATOR, CALL_END, CALLS_END)
    call_starts = (CALLS_BEGIN, CALL_BEGIN)

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        super().__init__(tools)
        self._outside = TextUntil((CALLS_BEGIN, CALL_BEGIN), drops_space=True)
        self._after_call = TextUntil((FENCE, CALL_END, CALL_BEGIN, CALLS_END), drops_space=True)
        self._is_after_call = False
        self._opening = ""  # the tag before the first call, until it is clear that one follows

    def _read_between(self, text: str, start: int, events: list[Event]) -> int:
        finder = self._after_call if self._is_after_call else self._outside
        before, tag, position = finder.push(text, start)
        if before:
            events.append(Content(self._opening + before))
            self._opening = ""
        if tag == CALL_BEGIN:
            self._call = DeepseekCall(self._opening + tag)
            self._opening = ""
        elif tag == CALLS_BEGIN:
            self._opening += tag
        elif tag == CALLS_END:
            self._is_after_call = False
        return position

    def _on_end(self, call: CallReader) -> None:
        self._is_after_call = call.is_complete

    def _flush(self) -> str:
        if not self._is_after_call:
            return self._opening + self._outside.flush()
        rest = self._after_call.flush()
        is_closing = any(tag.startswith(rest.strip()) for tag in (FENCE, CALL_END, CALLS_END))
        return "" if is_closing else rest
