"""Reads a whole chat message: first its thoughts, then content and tool calls."""

from __future__ import annotations

from collections.abc import Sequence

from server.parsers.events import CallArguments, CallCut, CallStart, Content, Event, Reasoning
from server.parsers.reasoning import ReasoningParser
from server.parsers.tool_parser import ToolParser


class MessageParser:
    """One for each choice: `push` its text as it comes, then call `finish` once."""

    def __init__(
        self,
        reasoning: ReasoningParser | None,
        tools: ToolParser | None,
        *,
        shows_reasoning: bool = True,
        max_calls: int | None = None,
    ) -> None:
        """Of more than `max_calls` calls the later ones are dropped."""
        self._reasoning = reasoning
        self._tools = tools
        self._shows_reasoning = shows_reasoning
        self._max_calls = max_calls
        self.num_calls = 0
        self.is_cut = False  # the text ended within a call

    @property
    def is_reasoning(self) -> bool:
        return self._reasoning is not None and self._reasoning.is_open

    def push(self, text: str) -> list[Event]:
        return self._read([Content(text)] if self._reasoning is None else self._reasoning.push(text))

    def finish(self) -> list[Event]:
        events = [] if self._reasoning is None else self._read(self._reasoning.finish())
        return events if self._tools is None else events + self._pass_on(self._tools.finish())

    def _read(self, parts: Sequence[Event]) -> list[Event]:
        events: list[Event] = []
        for part in parts:
            if isinstance(part, Content) and self._tools is not None:
                events += self._pass_on(self._tools.push(part.text))
            elif self._shows_reasoning or not isinstance(part, Reasoning):
                events.append(part)
        return events

    def _pass_on(self, events: Sequence[Event]) -> list[Event]:
        """Number the calls, and drop those that are too many."""
        passed: list[Event] = []
        for event in events:
            if isinstance(event, CallStart):
                assert self._tools is not None
                self.num_calls += 1
                event = event._replace(call_id=self._tools.new_call_id())
            is_of_call = isinstance(event, CallStart | CallArguments | CallCut)
            if is_of_call and self._max_calls is not None and self.num_calls > self._max_calls:
                continue
            self.is_cut |= isinstance(event, CallCut)
            passed.append(event)
        return passed
