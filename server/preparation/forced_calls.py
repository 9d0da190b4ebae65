"""What holds a model to calling tools: the grammar of an answer that is nothing but calls."""

from __future__ import annotations

from typing import Any

from model.grammar.source import GrammarError, GrammarSource
from server.delivery.generation import WantedGrammar
from server.errors import invalid_schema
from server.preparation.tool_use import Tool, ToolUse

_PLAIN_KEYS = frozenset(
    {"type", "properties", "required", "title", "description", "default", "examples", "$defs", "definitions"}
)
"""A schema of no other keys says all about its properties by naming them."""


def forced_calls(tool_use: ToolUse) -> WantedGrammar | None:
    """None where calling is up to the model, or not allowed. Raises `APIError`.

    One named tool: its arguments. Some tool: a JSON array of `{"name": ..., "parameters": {...}}`.
    """
    if not tool_use.is_forced:
        return None
    try:
        named = [tool for tool in tool_use.tools if tool["function"]["name"] == tool_use.name]
        schema = _parameters(named[0]) if named else _array_of_calls(tool_use)
        return WantedGrammar("tools", GrammarSource.json_schema(schema, on_one_line=True))
    except RecursionError:
        raise invalid_schema("tools", "a schema is nested too deeply") from None
    except GrammarError as error:
        raise invalid_schema("tools", str(error)) from None


def _array_of_calls(tool_use: ToolUse) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [_call(tool, f"tool_{i}") for i, tool in enumerate(tool_use.tools)]},
        "$defs": {
            f"tool_{i}": _with_moved_references(_parameters(tool), f"#/$defs/tool_{i}")
            for i, tool in enumerate(tool_use.tools)
        },
    }
    return schema if tool_use.is_parallel else {**schema, "maxItems": 1}


def _call(tool: Tool, definition: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool["function"]["name"]},
            "parameters": {"$ref": f"#/$defs/{definition}"},
        },
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _parameters(tool: Tool) -> dict[str, Any]:
    """The schema of the arguments: an object, which has only the properties that are named.

    JSON schema would allow any others beside them, but to a tool they would mean nothing.
    """
    parameters = tool["function"].get("parameters") or {}
    closed = {"additionalProperties": False} if parameters.keys() <= _PLAIN_KEYS else {}
    return {"type": "object", **closed, **parameters}


def _with_moved_references(schema: Any, root: str) -> Any:
    """`schema` as it must be written where it stands at `root`: references start from the whole document."""
    if isinstance(schema, list):
        return [_with_moved_references(entry, root) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _with_moved_references(value, root) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = root + reference.removeprefix("#")
    return moved
