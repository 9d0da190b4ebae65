"""The arguments of one tool call and nothing else."""

from __future__ import annotations

from server.parsers.calls.call_reader import CallReader
from server.parsers.calls.json_call import SPACE
from server.parsers.events import Event
from server.parsers.json_value import JsonValueScanner
from server.parsers.tool_parser import ToolParser


class ArgumentsCall(CallReader):
    """Begins at the first character of the arguments of a tool whose name is known."""

    def __init__(self, prefix: str, name: str) -> None:
        super().__init__(prefix)
        self._scanner = JsonValueScanner()
        self._start(name)

    def _read(self, text: str, start: int) -> int:
        end = self._scanner.push(text, start)
        self._add_arguments(text[start:end])
        self.is_complete = end is not None
        return len(text) if end is None else end


class NamedCall(ToolParser):
    """For answers that a grammar holds to the arguments of the tool `name`. What follows them is dropped."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._is_over = False

    def _read_between(self, text: str, start: int, events: list[Event]) -> int:
        if self._is_over:
            return len(text)
        if text[start] in SPACE:
            return start + 1
        self._call = ArgumentsCall("", self._name)
        return start

    def _on_end(self, call: CallReader) -> None:
        self._is_over = True

    def _flush(self) -> str:
        return ""
