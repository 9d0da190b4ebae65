"""Finds the end of a JSON value in a text that comes in pieces."""

from __future__ import annotations

import re

_IN_STRING = re.compile(r'["\\]')
_IN_CONTAINER = re.compile(r'["\[\]{}]')
_AFTER_SCALAR = re.compile(r"[\s,\]}]")


class JsonValueScanner:
    """Follows strings and brackets, nothing else: what is no JSON between them passes unnoticed."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_begun = False
        self._in_string = False
        self._is_escaped = False

    def push(self, text: str, start: int) -> int | None:
        """Index after the value's last character; None if all of `text` belongs to it and it may go on.

        The first call must begin at the value's first character.
        """
        position = start
        while position < len(text):
            if self._is_escaped:
                self._is_escaped = False
                position += 1
            elif self._in_string:
                position = self._skip_in_string(text, position)
                if not self._in_string and self._depth == 0:
                    return position
            elif self._depth or (not self._is_begun and text[position] in '"[{'):
                position = self._skip_in_container(text, position)
                if self._depth == 0 and not self._in_string:
                    return position
            else:
                self._is_begun = True
                end = _AFTER_SCALAR.search(text, position)
                return end.start() if end else None
        return None

    def _skip_in_string(self, text: str, start: int) -> int:
        mark = _IN_STRING.search(text, start)
        if mark is None:
            return len(text)
        self._is_escaped = mark[0] == "\\"
        self._in_string = self._is_escaped
        return mark.end()

    def _skip_in_container(self, text: str, start: int) -> int:
        mark = _IN_CONTAINER.search(text, start)
        if mark is None:
            return len(text)
        self._is_begun = True
        if mark[0] == '"':
            self._in_string = True
        else:
            self._depth += 1 if mark[0] in "[{" else -1
        return mark.end()
