"""Reads a tool call in tags: `<function=f>`, a `<parameter=p>` with its value for each, `</function>`."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from typing import Any

from server.parsers.calls.call_reader import CallReader
from server.parsers.text_until import TextUntil

FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
_ENDS = (END_PARAMETER, PARAMETER, END_FUNCTION)
VALUE_ENDS = (*(f"\n{end}" for end in _ENDS), *_ENDS)
"""Models leave closing tags out; a line break before the tag belongs to it."""

JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


class XmlCall(CallReader):
    """Begins after `<function=`. The arguments become JSON by the types that the tool's schema names.

    `functions` are the tools' definitions by name. Text is passed on as it comes, other values once whole.
    """

    def __init__(self, prefix: str, functions: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(prefix)
        self._functions = functions
        self._properties: Mapping[str, Any] = {}
        self._name = TextUntil((">", "\n"))
        self._between = TextUntil((PARAMETER, END_FUNCTION))
        self._value_end = TextUntil(VALUE_ENDS)
        self._text = ""  # of a name, or of a value that is passed on once whole
        self._types: frozenset[str] = frozenset()
        self._num_parameters = 0
        self._read_next: Callable[[str, int], int] = self._read_function_name

    def _read(self, text: str, start: int) -> int:
        return self._read_next(text, start)

    def _read_function_name(self, text: str, start: int) -> int:
        before, mark, position = self._name.push(text, start)
        self._text += before
        if mark == ">" and self._text.strip():
            name = self._text.strip()
            self._properties = _properties(self._functions.get(name))
            self._start(name)
            self._read_next = self._read_between
        elif mark is not None:
            self._break()
        return position

    def _read_between(self, text: str, start: int) -> int:
        _, mark, position = self._between.push(text, start)
        if mark is not None:
            self._pass_tag(mark)
        return position

    def _pass_tag(self, tag: str) -> None:
        self._text = ""
        if tag == PARAMETER:
            self._read_next = self._read_parameter_name
        elif tag == END_FUNCTION:
            self._add_arguments("}" if self._num_parameters else "{}")
            self.is_complete = True
        else:
            self._read_next = self._read_between

    def _read_parameter_name(self, text: str, start: int) -> int:
        before, mark, position = self._name.push(text, start)
        self._text += before
        if mark is not None:
            name = self._text.strip()
            self._types = _types(self._properties.get(name))
            self._add_arguments((", " if self._num_parameters else "{") + _to_json(name) + ": ")
            self._num_parameters += 1
            self._text = ""
            self._read_next = self._read_first_of_value
        return position

    def _read_first_of_value(self, text: str, start: int) -> int:
        """The line break after the opening tag belongs to the tag."""
        self._read_next = self._read_value
        if self._is_text:
            self._add_arguments('"')
        return start + (text[start] == "\n")

    def _read_value(self, text: str, start: int) -> int:
        before, mark, position = self._value_end.push(text, start)
        if self._is_text:
            self._add_arguments(_to_json(before)[1:-1])
        else:
            self._text += before
        if mark is not None:
            self._add_arguments('"' if self._is_text else _value_to_json(self._text, self._types))
            self._pass_tag(mark.lstrip())
        return position

    @property
    def _is_text(self) -> bool:
        return self._types <= {"string"}


def _properties(function: Mapping[str, Any] | None) -> Mapping[str, Any]:
    parameters = (function or {}).get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def _types(schema: Any) -> frozenset[str]:
    """JSON types that a parameter may have; none where its schema, which nobody has checked, does not say."""
    if not isinstance(schema, Mapping):
        return frozenset()
    found = {name for name in _listed(schema.get("type")) if isinstance(name, str)}
    for option in [*_listed(schema.get("anyOf")), *_listed(schema.get("oneOf"))]:
        found |= _types(option)
    return frozenset(found & JSON_TYPES.keys())


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _value_to_json(text: str, types: frozenset[str]) -> str:
    """`text` as a value of one of `types`, as a string if it is none. Python's spelling is taken too."""
    for parse in (json.loads, ast.literal_eval):
        try:
            value = parse(text.strip())
            if any(_is_instance(value, name) for name in types):
                return _to_json(value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
    return _to_json(text)


def _is_instance(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, JSON_TYPES[name])


def _to_json(value: Any) -> str:
    """Raises ValueError for what JSON or UTF-8 has no words for: infinity, half a surrogate pair."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()
    return text
