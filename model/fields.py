"""Typed access to a mapping that came from a file, with errors that name the file and the field."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.config import ModelError


class Fields:
    """A field that is absent or null takes the default; without a default it is an error."""

    def __init__(self, values: Mapping[str, Any], path: Path, prefix: str = "") -> None:
        """`prefix` goes before every name."""
        self.path = path
        self._values = values
        self._prefix = prefix

    def get(self, name: str, default: Any = None) -> Any:
        value = self._values.get(self._prefix + name)
        return default if value is None else value

    def has(self, name: str) -> bool:
        """Whether the field is written down, be it as null."""
        return self._prefix + name in self._values

    def integer(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        value = self._required(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(name, f"is {value!r}, not an integer of at least {minimum}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self._required(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.error(name, f"is {value!r}, not a number above 0")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return None if self.get(name) is None else self.number(name)

    def boolean(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"is {value!r}, not true or false")
        return value

    def token_ids(self, name: str) -> list[int]:
        """One id, a list of them, or nothing."""
        value = self.get(name, [])
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
            raise self.error(name, f"is {value!r}, not a token id or a list of them")
        return ids

    def error(self, name: str, problem: str) -> ModelError:
        return ModelError(f"{self.path}: {self._prefix}{name} {problem}")

    def _required(self, name: str, default: Any) -> Any:
        value = self.get(name, default)
        if value is None:
            raise self.error(name, "is missing")
        return value
