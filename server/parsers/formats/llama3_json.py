"""Tool calls as Llama 3 writes them: an answer that is a JSON object, or several with `;` between them."""

from __future__ import annotations

from collections.abc import Iterable

from server.parsers.calls.call_reader import CallReader
from server.parsers.calls.json_call import SPACE, JsonCall
from server.parsers.events import Content, Event
from server.parsers.text_until import TextUntil
from server.parsers.tool_parser import Tool, ToolParser

PYTHON_TAG = "<|python_tag|>"


class Llama3JsonParser(ToolParser):
    """A call stands at the very beginning, after `<|python_tag|>`, or after another call.

    JSON that is no call of a known tool is content.
    """

    tags = (PYTHON_TAG,)

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        super().__init__(tools)
        self._text = TextUntil((PYTHON_TAG,), drops_space=True)
        self._may_begin = True
        self._gap: list[str] = []  # where a call may begin: white space, separators, a tag
        self._tag = ""  # that of it which is the tag, or its beginning
        self._has_calls = False

    def _read_between(self, text: str, start: int, events: list[Event]) -> int:
        if self._may_begin:
            return self._read_gap(text, start, events)
        before, tag, position = self._text.push(text, start)
        if before:
            events.append(Content(before))
        if tag is not None:
            self._may_begin = True
            self._gap, self._tag = [tag], tag
        return position

    def _read_gap(self, text: str, start: int, events: list[Event]) -> int:
        character = text[start]
        if character != "{" and self._goes_on(character):
            self._gap.append(character)
            return start + 1
        gap = "".join(self._gap)
        self._gap, self._tag = [], ""
        if character == "{":
            self._call = JsonCall(gap + character, self._functions)
            return start + 1
        self._may_begin = False
        if gap:
            events.append(Content(gap))
        return start

    def _goes_on(self, character: str) -> bool:
        """White space and separators, then perhaps the tag or its beginning, then white space."""
        if self._tag == PYTHON_TAG:
            return character in SPACE
        if not self._tag and character in SPACE + ";":
            return True
        self._tag += character
        return PYTHON_TAG.startswith(self._tag)

    def _on_end(self, call: CallReader) -> None:
        self._may_begin = call.is_complete
        self._has_calls |= call.is_complete

    def _flush(self) -> str:
        rest = "".join(self._gap) + self._text.flush()
        return "" if self._has_calls and not rest.strip(SPACE + ";") else rest
