"""Splits what a reasoning model writes into its thoughts and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from server.parsers.events import Content, Event, Reasoning
from server.parsers.text_until import TextUntil


class Thoughts(Enum):
    """What a prompt tells of the thoughts in the answer to it."""

    BEGUN = "begun"  # the prompt ends within them
    POSSIBLE = "possible"
    NONE = "none"  # they are over, or switched off


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a family of models marks its thoughts."""

    open_tag: str = "<think>"
    close_tag: str = "</think>"
    can_be_disabled: bool = False  # by the template variable enable_thinking

    def after_prompt(self, prompt: str, *, enable_thinking: bool) -> Thoughts:
        """Of an answer to a rendered prompt. Many templates write the opening tag, or both, themselves."""
        end = prompt.rstrip()
        if end.endswith((self.open_tag, self.close_tag)):
            return Thoughts.BEGUN if end.endswith(self.open_tag) else Thoughts.NONE
        return Thoughts.POSSIBLE if enable_thinking or not self.can_be_disabled else Thoughts.NONE

    def within_message(self, message: str) -> Thoughts:
        """Of what continues an assistant's message."""
        is_open = message.rfind(self.open_tag) > message.rfind(self.close_tag)
        return Thoughts.BEGUN if is_open else Thoughts.NONE


class ReasoningParser:
    """`push` text in pieces of any size, then call `finish` once. White space around the thoughts is dropped.

    `is_open`: the text begins with thoughts, with or without the opening tag. Otherwise they need the tag, at
    the beginning. `other_ends` are beginnings of what cannot be thoughts any more (a tool call); unlike the
    closing tag they are content.
    """

    def __init__(self, tags: ReasoningFormat, *, is_open: bool, other_ends: Sequence[str] = ()) -> None:
        self.is_open = is_open
        self._tags = tags
        self._end = TextUntil((tags.close_tag, *other_ends), drops_space=True)
        self._is_beginning = True  # it is not clear yet whether the opening tag comes
        self._held: list[str] = []  # until it is
        self._begun = ""  # that of it which may be the tag's beginning
        self._drops_space = False  # at the beginning of what comes next

    def push(self, text: str) -> list[Event]:
        if self._is_beginning:
            text = self._read_beginning(text)
        return self._read_thoughts(text) if self.is_open else self._read_answer(text)

    def finish(self) -> list[Event]:
        """The text ends here."""
        rest = "".join(self._held) + self._end.flush()
        if self.is_open:
            return [Reasoning(rest)] if rest.strip() else []
        return [Content(rest)] if rest else []

    def _read_beginning(self, text: str) -> str:
        """What comes after the opening tag, or all of it if there is none; empty while that is open."""
        self._held.append(text)
        begun = self._begun = (self._begun + text).lstrip()
        if self._tags.open_tag.startswith(begun) and begun != self._tags.open_tag:
            return ""
        self._is_beginning = False
        held, self._held = "".join(self._held), []
        if not begun.startswith(self._tags.open_tag):
            self._drops_space = self.is_open
            return held
        self.is_open = self._drops_space = True
        return begun.removeprefix(self._tags.open_tag)

    def _read_thoughts(self, text: str) -> list[Event]:
        text = self._trim(text)
        before, tag, position = self._end.push(text)
        events: list[Event] = [Reasoning(before)] if before else []
        if tag is None:
            return events
        self.is_open = False
        self._drops_space = tag == self._tags.close_tag
        return events + self._read_answer(("" if self._drops_space else tag) + text[position:])

    def _read_answer(self, text: str) -> list[Event]:
        text = self._trim(text)
        return [Content(text)] if text else []

    def _trim(self, text: str) -> str:
        if self._drops_space:
            text = text.lstrip()
            self._drops_space = not text
        return text
