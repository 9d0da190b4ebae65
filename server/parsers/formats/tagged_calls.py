"""Calls between `<tool_call>` and `</tool_call>`, whatever a call itself looks like."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from server.parsers.calls.call_reader import CallReader
from server.parsers.events import Content, Event
from server.parsers.text_until import TextUntil
from server.parsers.tool_parser import Tool, ToolParser

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class TaggedCalls(ToolParser):
    """Forgiving where models are known to slip: several calls between two tags, a missing closing tag.

    Tags without a call between them are content.
    """

    tags: ClassVar[tuple[str, ...]] = (OPEN, CLOSE)
    call_mark: ClassVar[str]
    """What a call begins with."""

    outside_marks: ClassVar[tuple[str, ...]] = (OPEN,)
    """What is looked for outside of the tags."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        super().__init__(tools)
        self._outside = TextUntil(self.outside_marks, drops_space=True)
        self._inside = TextUntil((OPEN, CLOSE, self.call_mark))
        self._is_inside = False
        self._gap = ""  # text inside of the tags that belongs to no call, the tag itself if none has come yet
        self._has_calls = False

    @abstractmethod
    def _open_call(self, prefix: str) -> CallReader:
        """A reader of what follows the mark; `prefix` ends in it."""

    def _read_between(self, text: str, start: int, events: list[Event]) -> int:
        finder = self._inside if self._is_inside else self._outside
        before, mark, position = finder.push(text, start)
        if self._is_inside:
            self._gap += before
        elif before:
            events.append(Content(before))
        if mark == self.call_mark:
            self._call = self._open_call(self._gap + mark)
            self._gap = ""
        elif mark is not None:
            self._pass_tag(mark, events)
        return position

    def _pass_tag(self, tag: str, events: list[Event]) -> None:
        if self._gap.startswith(OPEN) or (tag == CLOSE and not self._has_calls):  # no call in these tags
            events.append(Content(self._gap + (tag if tag == CLOSE else "")))
        self._is_inside = tag == OPEN
        self._gap = tag if tag == OPEN else ""

    def _on_end(self, call: CallReader) -> None:
        self._has_calls |= call.is_complete
        self._is_inside &= call.is_complete  # a broken call is content, and so is what follows

    def _flush(self) -> str:
        rest = self._gap + self._inside.flush() + self._outside.flush()
        is_closing = self._has_calls and CLOSE.startswith(rest.strip())  # white space, or part of the tag
        return "" if is_closing else rest
