"""What an answer has to match, as text: the key by which compiled grammars are cached."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple


class GrammarError(ValueError):
    """A schema, regular expression or grammar that is wrong, not supported, or too large."""


class GrammarKind(StrEnum):
    """The languages that a source is written in."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"  # Lark as llguidance reads it, or GBNF


class ThoughtTags(NamedTuple):
    """Around the free text that a reasoning model may write before what a grammar is about.

    Without an opening tag the thoughts are under way already; with one they may be left out.
    """

    open: str | None
    close: str


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """Made by one of the class methods; nothing is checked before it is compiled."""

    kind: GrammarKind
    text: str
    thoughts: ThoughtTags | None = None  # may come first
    on_one_line: bool = False  # JSON with a space after each comma and colon, and no other white space

    @classmethod
    def json_schema(cls, schema: dict[str, Any] | str, *, on_one_line: bool = False) -> GrammarSource:
        """JSON that a schema allows; it may also be written out in a string. Raises `GrammarError`."""
        try:
            parsed = json.loads(schema) if isinstance(schema, str) else schema
            text = json.dumps(parsed, ensure_ascii=False)
        except RecursionError:
            raise GrammarError("the schema is nested too deeply") from None
        except ValueError as error:
            raise GrammarError(f"not JSON: {error}") from None
        if not isinstance(parsed, dict):
            raise GrammarError("a JSON schema is an object")
        return cls(GrammarKind.JSON_SCHEMA, text, on_one_line=on_one_line)

    def after_thoughts(self, tags: ThoughtTags) -> GrammarSource:
        """The same, for an answer that may begin with thoughts."""
        return replace(self, thoughts=tags)

    @classmethod
    def any_json_object(cls) -> GrammarSource:
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> GrammarSource:
        """Text that the whole pattern matches, in the syntax of Rust's regex crate."""
        return cls(GrammarKind.REGEX, pattern)

    @classmethod
    def choice(cls, choices: Sequence[str]) -> GrammarSource:
        """One of several texts."""
        alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
        return cls(GrammarKind.GRAMMAR, f"start: {alternatives}")

    @classmethod
    def grammar(cls, text: str) -> GrammarSource:
        """A context-free grammar: Lark (its start rule is `start`; `%json {...}` embeds a schema) or GBNF."""
        return cls(GrammarKind.GRAMMAR, text)
