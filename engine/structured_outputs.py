"""What a text that is generated offline has to match, in the words of `SamplingParams`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from model.grammar.source import GrammarError, GrammarSource


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """Exactly one of these, by the names that vLLM gave them; raises `GrammarError` otherwise.

    `json` is a schema, or one written out in a string. What is in it is checked when it is compiled.
    """

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None  # Lark or GBNF
    json_object: bool | None = None  # any JSON object

    def __post_init__(self) -> None:
        given = [field.name for field in fields(self) if getattr(self, field.name) not in (None, False)]
        if len(given) != 1:
            names = ", ".join(given) or "none of them"
            raise GrammarError(f"one of json, regex, choice, grammar and json_object is needed, not {names}")

    def source(self) -> GrammarSource:
        """Raises `GrammarError`."""
        if self.json is not None:
            return GrammarSource.json_schema(self.json)
        if self.regex is not None:
            return GrammarSource.regex(self.regex)
        if self.choice is not None:
            return GrammarSource.choice(self.choice)
        if self.grammar is not None:
            return GrammarSource.grammar(self.grammar)
        return GrammarSource.any_json_object()
