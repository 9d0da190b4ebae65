"""What the text of a chat answer consists of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Content(NamedTuple):
    text: str


class Reasoning(NamedTuple):
    text: str


class CallStart(NamedTuple):
    """A tool call begins; the arguments that follow belong to it until the next start."""

    name: str
    call_id: str = ""  # given by `MessageParser`


class CallArguments(NamedTuple):
    """More of the arguments' JSON text; all of a call joined are its arguments."""

    text: str


class CallCut(NamedTuple):
    """The text ended within the call that was started last. `text` is that call as the model wrote it."""

    text: str


Event = Content | Reasoning | CallStart | CallArguments | CallCut


def merged(events: Iterable[Event]) -> list[Event]:
    """The same in as few events as possible: neighbours of a kind become one."""
    result: list[Event] = []
    for event in events:
        match event, result[-1:]:
            case Content(text), [Content(before)]:
                result[-1] = Content(before + text)
            case Reasoning(text), [Reasoning(before)]:
                result[-1] = Reasoning(before + text)
            case CallArguments(text), [CallArguments(before)]:
                result[-1] = CallArguments(before + text)
            case _:
                result.append(event)
    return result
