"""Cases on tool calls. The embedded model does not know any format of calls: a grammar makes it call."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.support.process import ServerProcess

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
LIST_TABLES = {"type": "function", "function": {"name": "list_tables", "parameters": {"properties": {}}}}
NAMED = {"type": "function", "function": {"name": "add"}}


def request(text: str, tool: Any, tool_choice: Any, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    common = {"model": "", "tools": [tool], "tool_choice": tool_choice, "parallel_tool_calls": False}
    return {"messages": messages, "max_tokens": 100, **common, **fields}


def streamed(client: openai.OpenAI, body: dict[str, Any]) -> Any:
    with client.chat.completions.stream(**body) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion()


@pytest.mark.parametrize(("tool_choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")])
def test_t1_a_streamed_tool_call_is_whole(
    embedded: ServerProcess, client: openai.OpenAI, tool_choice: Any, reason: str
) -> None:
    body = request("Add 2 and 3.", ADD, tool_choice, temperature=1, seed=5, n=2)
    whole, stream = client.chat.completions.create(**body), streamed(client, body)
    for expected, choice in zip(whole.choices, stream.choices, strict=True):
        assert expected.finish_reason == choice.finish_reason == reason
        (call,), (streamed_call,) = expected.message.tool_calls, choice.message.tool_calls
        assert call.function.name == streamed_call.function.name == "add"
        assert streamed_call.function.arguments == call.function.arguments
        arguments = json.loads(call.function.arguments)
        assert arguments.keys() == {"a", "b"} and all(type(value) is int for value in arguments.values())
    assert len({choice.message.tool_calls[0].id for choice in whole.choices}) == 2


def test_t2_an_empty_argument_object_stays(embedded: ServerProcess, client: openai.OpenAI) -> None:
    body = request("Which tables are there?", LIST_TABLES, "required", temperature=0)
    for answer in (client.chat.completions.create(**body), streamed(client, body)):
        (choice,) = answer.choices
        (call,) = choice.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("list_tables", "{}")
        assert choice.finish_reason == "tool_calls"


def test_a_forced_call_that_does_not_fit_is_cut(embedded: ServerProcess, client: openai.OpenAI) -> None:
    body = request("Add 2 and 3.", ADD, "required", temperature=0, max_tokens=8)
    (choice,) = client.chat.completions.create(**body).choices
    assert choice.finish_reason == "length" and choice.message.tool_calls is None
    assert choice.message.content.startswith("[") and '"name"' in choice.message.content
