"""Reads a tool call whose name comes in a head of some form, and then its arguments as a JSON object."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from server.parsers.calls.call_reader import CallReader
from server.parsers.json_value import JsonValueScanner


class HeadedCall(CallReader):
    """Subclasses read the head; at the opening brace they call `_begin_arguments`."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self._arguments = JsonValueScanner()
        self._read_next: Callable[[str, int], int] = self._read_head

    def _read(self, text: str, start: int) -> int:
        return self._read_next(text, start)

    @abstractmethod
    def _read_head(self, text: str, start: int) -> int:
        """As `_read`, up to the opening brace."""

    def _begin_arguments(self, name: str) -> None:
        """The opening brace was read; what came before gives this name, white space around it aside."""
        name = name.strip()
        if not name or any(map(str.isspace, name)):
            self._break()
            return
        self._start(name)
        self._add_arguments("{")
        self._arguments.push("{", 0)
        self._read_next = self._read_arguments

    def _read_arguments(self, text: str, start: int) -> int:
        end = self._arguments.push(text, start)
        self._add_arguments(text[start:end])
        self.is_complete = end is not None
        return len(text) if end is None else end
