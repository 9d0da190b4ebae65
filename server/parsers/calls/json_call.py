"""Reads a tool call that is a JSON object, `{"name": ..., "arguments": {...}}`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container
from typing import Any

from server.parsers.calls.call_reader import CallReader
from server.parsers.json_value import JsonValueScanner

ARGUMENT_KEYS = ("arguments", "parameters")
CALL_KEYS = ("name", "type", *ARGUMENT_KEYS)
SPACE = " \t\r\n"
_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonCall(CallReader):
    """Begins after the opening brace. Keys may come in any order; arguments are passed on as written.

    With `names`, for places where a call could be mistaken for other JSON, an object is a call only if its
    name is one of them and it has no keys but those of a call.
    """

    def __init__(self, prefix: str = "{", names: Container[str] | None = None) -> None:
        super().__init__(prefix)
        self._names = names
        self._name: str | None = None
        self._arguments: JsonArguments | None = None
        self._key: str | None = None
        self._text = ""  # of the key or name that is being read
        self._scanner = JsonValueScanner()
        self._read_next: Callable[[str, int], int] = self._read_item

    def _read(self, text: str, start: int) -> int:
        return self._read_next(text, start)

    def _read_item(self, text: str, start: int) -> int:
        """A key, the comma before it, or the closing brace."""
        character = text[start]
        if character == '"':
            self._text, self._scanner = "", JsonValueScanner()
            self._read_next = self._read_key
            return start
        if character == "}":
            self._end()
        elif character != "," and character not in SPACE:
            self._break()
        return start + 1

    def _read_key(self, text: str, start: int) -> int:
        end = self._scanner.push(text, start)
        self._text += text[start:end]
        if end is None:
            return len(text)
        self._key = _as_string(self._text)
        self._read_next = self._read_colon
        if self._key is None or (self._names is not None and self._key not in CALL_KEYS):
            self._break()
        return end

    def _read_colon(self, text: str, start: int) -> int:
        if text[start] == ":":
            self._text, self._scanner = "", JsonValueScanner()
            self._read_next = self._read_value_start
        elif text[start] not in SPACE:
            self._break()
        return start + 1

    def _read_value_start(self, text: str, start: int) -> int:
        if text[start] in SPACE:
            return start + 1
        self._read_next = self._read_value
        if self._key in ARGUMENT_KEYS and self._arguments is None:
            self._arguments = JsonArguments()
            self._read_next = self._read_arguments
        return start

    def _read_value(self, text: str, start: int) -> int:
        end = self._scanner.push(text, start)
        if self._key == "name":
            self._text += text[start:end]
        if end is None:
            return len(text)
        self._read_next = self._read_item
        if self._key == "name":
            self._name = _as_string(self._text)
            if self._name is None or (self._names is not None and self._name not in self._names):
                self._break()
            self._tell()
        return end

    def _read_arguments(self, text: str, start: int) -> int:
        assert self._arguments is not None
        end = self._arguments.push(text, start)
        self._tell()
        if end is None:
            return len(text)
        self._has_all_arguments = True
        self._read_next = self._read_item
        return end

    def _tell(self) -> None:
        """Arguments that came before the name wait for it."""
        if self._name is None or self._arguments is None or self.is_broken:
            return
        if not self._is_started:
            self._start(self._name)
        self._add_arguments(self._arguments.take())

    def _end(self) -> None:
        if self._name is None:
            self._break()
        elif self._arguments is None:
            self._start(self._name)
            self._add_arguments("{}")
        self.is_complete = not self.is_broken


class JsonArguments:
    """The value of a call's arguments. An object is passed on as it comes.

    Anything else is held until it is whole: some models write the object as a string of JSON, or null.
    """

    def __init__(self) -> None:
        self._scanner = JsonValueScanner()
        self._text = ""
        self._is_object: bool | None = None

    def push(self, text: str, start: int) -> int | None:
        """As `JsonValueScanner.push`."""
        if self._is_object is None:
            self._is_object = text[start] == "{"
        end = self._scanner.push(text, start)
        self._text += text[start:end]
        if end is not None and not self._is_object:
            self._text = _as_object_text(self._text)
            self._is_object = True
        return end

    def take(self) -> str:
        """What may be passed on, since the last call."""
        if not self._is_object:
            return ""
        text, self._text = self._text, ""
        return text


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _as_string(text: str) -> str | None:
    """None also for a string with half a surrogate pair, which no answer could carry."""
    value = _parse(text)
    return value if isinstance(value, str) and not _SURROGATE.search(value) else None


def _as_object_text(text: str) -> str:
    if text == "null":
        return "{}"
    written = _as_string(text)
    return written if written is not None and isinstance(_parse(written), dict) else text
