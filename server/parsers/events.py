"""What the text of a chat answer consists of."""

from __future__ import annotations

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
