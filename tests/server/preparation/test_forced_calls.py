"""The grammars that hold a model to calling tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.errors import APIError
from server.preparation.forced_calls import forced_calls
from server.preparation.tool_use import ToolUse
from tests.support.grammars import byte_compiler, matches

COMPILER = byte_compiler()

NODE = {
    "type": "object",
    "properties": {"value": {"$ref": "#/$defs/value"}, "next": {"$ref": "#"}},
    "required": ["value"],
    "additionalProperties": False,
    "$defs": {"value": {"type": "integer"}},
}


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    function = {"name": name} if parameters is None else {"name": name, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = (tool("push", NODE), tool("pop"), tool('odd "name"', {"properties": {"a": {"enum": ["x", 1]}}}))


def allows(tool_use: ToolUse, value: Any) -> bool:
    wanted = forced_calls(tool_use)
    assert wanted is not None and wanted.param == "tools"
    return matches(COMPILER.compile(wanted.source), json.dumps(value))


PUSH = {"name": "push", "parameters": {"value": 1, "next": {"value": 2, "next": {"value": 3}}}}
POP: dict[str, Any] = {"name": "pop", "parameters": {}}


@pytest.mark.parametrize(
    "calls", [[PUSH], [POP, PUSH, POP], [{"name": 'odd "name"', "parameters": {"a": "x"}}]]
)
def test_arrays_of_calls_of_the_tools(calls: Any) -> None:
    assert allows(ToolUse("required", TOOLS), calls)
    assert allows(ToolUse("required", TOOLS, is_parallel=False), calls) == (len(calls) == 1)


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {},
        POP,
        [{"name": "peek", "parameters": {}}],
        [{"name": "pop"}],
        [{"name": "pop", "parameters": {"a": 1}}],
        [{"name": "push", "parameters": {"value": "1"}}],
        [{"name": "push", "parameters": {"value": 1, "next": {"value": None}}}],
        [{**POP, "extra": 1}],
        [{"name": 'odd "name"', "parameters": {"a": "x", "b": 1}}],
    ],
)
def test_what_is_no_array_of_calls(answer: Any) -> None:
    assert not allows(ToolUse("required", TOOLS), answer)


def test_a_named_tool_is_its_arguments() -> None:
    push = ToolUse("named", TOOLS, "push", is_parallel=False)
    assert allows(push, PUSH["parameters"])
    assert not allows(push, [PUSH]) and not allows(push, {}) and not allows(push, {"value": 1.5})
    assert allows(ToolUse("named", TOOLS, "pop", is_parallel=False), {})


def test_calls_are_on_one_line() -> None:
    """Models that are made to write calls would fill the space between two tokens with more of it."""
    wanted = forced_calls(ToolUse("named", TOOLS, "push", is_parallel=False))
    assert wanted is not None
    grammar = COMPILER.compile(wanted.source)
    assert matches(grammar, '{"value": 1, "next": {"value": 2}}')
    assert not matches(grammar, '{"value":1}') and not matches(grammar, '{ "value": 1}')


def test_nothing_is_forced_where_the_model_decides() -> None:
    assert forced_calls(ToolUse("auto", TOOLS)) is None
    assert forced_calls(ToolUse()) is None


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(100_000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(APIError) as error:
        forced_calls(ToolUse("required", (tool("deep", schema),)))
    assert (error.value.code, error.value.param) == ("invalid_schema", "tools")
