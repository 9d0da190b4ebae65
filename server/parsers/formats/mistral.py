"""Tool calls as Mistral's models write them, after the token `[TOOL_CALLS]`.

Older models go on with an array, `[{"name": ..., "arguments": {...}}]`, newer ones with `name{...}` or
`name[CALL_ID]id[ARGS]{...}` and the token again before each further call.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable

from server.parsers.calls.call_reader import CallReader
from server.parsers.calls.headed_call import HeadedCall
from server.parsers.calls.json_call import SPACE, JsonCall
from server.parsers.events import Content, Event
from server.parsers.text_until import TextUntil
from server.parsers.tool_parser import Tool, ToolParser

TOOL_CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class MistralCall(HeadedCall):
    """Begins at the name: `name{...}`, `name[ARGS]{...}` or `name[CALL_ID]id[ARGS]{...}`."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self._head = TextUntil((CALL_ID, ARGS, "{"))
        self._name = ""
        self._has_name = False

    def _read_head(self, text: str, start: int) -> int:
        before, mark, position = self._head.push(text, start)
        if not self._has_name:  # else it is the model's own id of the call
            self._name += before
            self._has_name = mark is not None
        if mark == "{":
            self._begin_arguments(self._name)
        elif mark == ARGS:
            self._read_next = self._read_space
        return position

    def _read_space(self, text: str, start: int) -> int:
        if text[start] == "{":
            self._begin_arguments(self._name)
        elif text[start] not in SPACE:
            self._break()
        return start + 1


class MistralParser(ToolParser):
    """Both forms. Text before the token is content; white space between calls is dropped."""

    tags = (TOOL_CALLS, CALL_ID, ARGS)
    call_starts = (TOOL_CALLS,)

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        super().__init__(tools)
        self._text = TextUntil((TOOL_CALLS,), drops_space=True)
        # From the token on, until the form is known; or between calls of an array.
        self._gap: list[str] | None = None
        self._in_array = False
        self._has_calls = False

    @staticmethod
    def new_call_id() -> str:
        """Their chat templates refuse ids of any other length."""
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))

    def _read_between(self, text: str, start: int, events: list[Event]) -> int:
        if self._gap is not None:
            return self._read_gap(text, start)
        before, tag, position = self._text.push(text, start)
        if before:
            events.append(Content(before))
        self._gap = None if tag is None else [tag]
        return position

    def _read_gap(self, text: str, start: int) -> int:
        assert self._gap is not None
        character = text[start]
        if self._in_array and character == "]":
            self._in_array, self._gap = False, None
        elif character == "{" and self._in_array:
            self._call = JsonCall("".join(self._gap) + character)
        elif self._in_array or character in SPACE or character == "[":
            self._in_array |= character == "["
            self._gap.append(character)
        else:
            self._call = MistralCall("".join(self._gap))
            return start
        return start + 1

    def _on_end(self, call: CallReader) -> None:
        self._has_calls |= call.is_complete
        self._in_array &= call.is_complete
        self._gap = [] if self._in_array else None

    def _flush(self) -> str:
        rest = "".join(self._gap or ()) + self._text.flush()
        return "" if self._has_calls and not rest.strip() else rest
