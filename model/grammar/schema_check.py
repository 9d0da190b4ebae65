"""Refuses JSON schemas whose meaning llguidance would change silently; what it refuses itself is left to it.

Keywords that no draft knows are annotations by JSON Schema's own rules, and pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from model.grammar.source import GrammarError

MAX_MULTIPLE_OF = 10_000
"""The automaton of `multipleOf` has as many states; 100,000 take seconds."""

_NOT_IN_JSON_SCHEMA = {
    "nullable": 'OpenAPI\'s; use "type": [..., "null"]',
    "extends": "draft 3's; use allOf",
    "disallow": "draft 3's",
    "divisibleBy": "draft 3's; use multipleOf",
}
_MAPS_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS_OF_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SCHEMAS = ("items", "additionalItems", "additionalProperties")


def check_schema(schema: dict[str, Any]) -> None:
    """Raises `GrammarError` naming the keyword."""
    pending: list[Any] = [schema]
    while pending:
        current = pending.pop()
        if isinstance(current, dict):
            _check_keywords(current)
            pending += _subschemas(current)


def _check_keywords(schema: dict[str, Any]) -> None:
    for keyword, hint in _NOT_IN_JSON_SCHEMA.items():
        if schema.get(keyword) not in (None, False):
            raise GrammarError(f"{keyword} is not supported: it is {hint}")
    for keyword in ("exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(schema.get(keyword), bool):
            raise GrammarError(f"{keyword} must be a number; as a flag it is draft 4's")
    multiple_of = schema.get("multipleOf")
    if isinstance(multiple_of, int | float) and not multiple_of <= MAX_MULTIPLE_OF:
        raise GrammarError(f"multipleOf is supported up to {MAX_MULTIPLE_OF}")


def _subschemas(schema: dict[str, Any]) -> Iterator[Any]:
    for keyword in _MAPS_OF_SCHEMAS:
        if isinstance(schema.get(keyword), dict):
            yield from schema[keyword].values()
    for keyword in _LISTS_OF_SCHEMAS:
        if isinstance(schema.get(keyword), list):
            yield from schema[keyword]
    for keyword in _SCHEMAS:
        yield schema.get(keyword)
