"""Tool calls and reasoning through the chat API. The model's output is the last user message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.sse import parse_events
from tests.support.tool_texts import hermes

URL = "/v1/chat/completions"
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
LIST_TABLES = {"type": "function", "function": {"name": "list_tables"}}
TOOLS = [ADD, LIST_TABLES]
CALLS: list[Any] = [("add", {"a": 2, "b": 3}), ("list_tables", {})]


@pytest.fixture(scope="module")
def parsing(serve: Any) -> Iterator[Any]:
    flags = {"reasoning_parser": "qwen3", "reasoning_alias": True, "trust_request_chat_template": True}
    with serve(tool_call_parser="hermes", **flags) as served:
        yield served


@pytest.fixture(scope="module")
def client(parsing: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{parsing.url}/v1", api_key="none")


def body(text: str, **fields: Any) -> dict[str, Any]:
    """A request whose answer is `text`; thinking is off unless asked for."""
    thinking = {"chat_template_kwargs": {"enable_thinking": False}}
    return {"messages": [{"role": "user", "content": text}], "tools": TOOLS, **thinking, **fields}


def client_body(text: str) -> dict[str, Any]:
    fields = body(text)
    extra = {"chat_template_kwargs": fields.pop("chat_template_kwargs")}
    return {**fields, "extra_body": extra}


def ask(served: Any, text: str, **fields: Any) -> Any:
    answer = served.http.post(URL, json=body(text, **fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(served: Any, text: str, **fields: Any) -> list[Any]:
    return parse_events(served.http.post(URL, json=body(text, stream=True, **fields)).content)


def joined(events: list[Any], index: int = 0) -> dict[str, Any]:
    """The message that a stream adds up to, by the rules that clients go by."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": [], "finish_reason": None}
    for choice in (choice for event in events for choice in event["choices"] if choice["index"] == index):
        delta = choice["delta"]
        message["content"] += delta.get("content", "")
        message["reasoning_content"] += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(message["calls"]):
                assert call["type"] == "function" and call["function"]["arguments"] == ""
                message["calls"].append([call["id"], call["function"]["name"], ""])
            else:
                assert call.keys() == {"index", "function"} and call["function"].keys() == {"arguments"}
                assert call["index"] == len(message["calls"]) - 1
                message["calls"][-1][2] += call["function"]["arguments"]
        message["finish_reason"] = choice["finish_reason"] or message["finish_reason"]
    return message


def test_a_whole_answer_with_calls(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="", **client_body(hermes(CALLS)))
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert calls == [("add", '{"a": 2, "b": 3}'), ("list_tables", "{}")]
    ids = {call.id for call in choice.message.tool_calls}
    assert len(ids) == 2 and all(call_id.startswith("call_") for call_id in ids)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("text", [hermes(CALLS), "Let me see.\n" + hermes(CALLS[:1]), "no call", ""])
def test_a_stream_adds_up_to_the_whole(parsing: Any, text: str, n: int) -> None:
    whole = ask(parsing, text or " ", n=n)
    events = stream(parsing, text or " ", n=n)
    assert [event["choices"][0]["delta"] for event in events[:n]] == [
        {"role": "assistant", "content": ""}
    ] * n
    for choice in whole["choices"]:
        message = joined(events, choice["index"])
        assert message["content"] == (choice["message"]["content"] or "")
        expected = [
            [call["function"]["name"], call["function"]["arguments"]]
            for call in choice["message"].get("tool_calls", ())
        ]
        assert [call[1:] for call in message["calls"]] == expected
        assert message["finish_reason"] == choice["finish_reason"]
        assert ("tool_calls" in choice["message"]) == bool(expected)


def test_the_clients_streaming_helper_takes_it(client: openai.OpenAI) -> None:
    request = client_body("So:\n" + hermes(CALLS))
    with client.chat.completions.stream(model="", **request) as events:
        deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
        final = events.get_final_completion()
    message = final.choices[0].message
    assert message.content == "So:"
    assert [call.function.arguments for call in message.tool_calls or ()] == ['{"a": 2, "b": 3}', "{}"]
    assert "".join(event.arguments_delta for event in deltas) == '{"a": 2, "b": 3}{}'
    assert final.choices[0].finish_reason == "tool_calls"


def test_tokens_that_come_together_are_read_alike(serve: Any) -> None:
    for tokens_per_handoff in (3, 7, 1000):
        with serve(engine={"tokens_per_handoff": tokens_per_handoff}, tool_call_parser="hermes") as served:
            message = joined(stream(served, hermes(CALLS)))
        assert [call[1:] for call in message["calls"]] == [["add", '{"a": 2, "b": 3}'], ["list_tables", "{}"]]


def test_a_call_that_is_cut_is_content_and_keeps_its_reason(parsing: Any) -> None:
    text = hermes(CALLS[:1])
    for max_tokens in (15, 40, 55):
        (choice,) = ask(parsing, text, max_tokens=max_tokens)["choices"]
        assert choice["message"]["content"] == text[:max_tokens]
        assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "length"
        message = joined(stream(parsing, text, max_tokens=max_tokens))
        told = '{"a": 2, "b": 3}'[: max(0, max_tokens - text.index('{"a"'))]
        assert message["finish_reason"] == "length"
        assert (message["content"], [call[2] for call in message["calls"]]) == (
            ("", [told]) if told else (text[:max_tokens], [])
        )
    (choice,) = ask(parsing, text, stop=['"b"'])["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", '"b"')
    assert choice["message"]["content"] == text[: text.index('"b"')]


def test_an_answer_cut_after_a_whole_call_says_that_it_was_cut(parsing: Any) -> None:
    text = hermes(CALLS[:1])
    max_tokens = len(text)  # all of the call, but not the end of the answer
    (choice,) = ask(parsing, text, max_tokens=max_tokens)["choices"]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["add"]
    assert choice["finish_reason"] == "length"
    assert joined(stream(parsing, text, max_tokens=max_tokens))["finish_reason"] == "length"
    function = {"type": "function", **ADD["function"]}
    response = {"input": text, "tools": [function], "max_output_tokens": max_tokens}
    answer = parsing.http.post("/v1/responses", json={**response, "reasoning": {"effort": "none"}}).json()
    assert answer["status"] == "incomplete"
    assert [(item["type"], item["status"]) for item in answer["output"]] == [("function_call", "completed")]


def test_only_the_first_call_without_parallel_calls(parsing: Any) -> None:
    (choice,) = ask(parsing, hermes(CALLS), parallel_tool_calls=False)["choices"]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["add"]
    message = joined(stream(parsing, hermes(CALLS), parallel_tool_calls=False))
    assert [call[1] for call in message["calls"]] == ["add"]


def test_without_tools_or_with_none_a_call_is_text(parsing: Any) -> None:
    for fields in ({"tools": None}, {"tool_choice": "none"}):
        (choice,) = ask(parsing, hermes(CALLS), **fields)["choices"]
        assert choice["message"]["content"] == hermes(CALLS) and choice["finish_reason"] == "stop"


def test_reasoning_whole_and_streamed(parsing: Any) -> None:
    text = "<think>\nhm, so\n</think>\n\nIt is 5. " + hermes(CALLS[:1])
    thinking: dict[str, Any] = {"chat_template_kwargs": None, "stream_options": {"include_usage": True}}
    events = stream(parsing, text, **thinking)
    message = joined(events)
    assert (message["reasoning_content"], message["content"]) == ("hm, so", "It is 5.")
    assert len(message["calls"]) == 1
    whole = ask(parsing, text, chat_template_kwargs=None)
    answer = whole["choices"][0]["message"]
    assert (answer["reasoning_content"], answer["reasoning"], answer["content"]) == (
        "hm, so",
        "hm, so",
        "It is 5.",
    )
    details = {"reasoning_tokens": len("<think>\nhm, so\n</think")}  # a token of this model is a byte
    assert whole["usage"]["completion_tokens_details"] == details
    assert events[-1]["usage"]["completion_tokens_details"] == details


def test_reasoning_without_its_opening_tag_and_switched_off(parsing: Any) -> None:
    answers = {
        "chat_template_kwargs": ask(parsing, "hm</think>yes", chat_template_kwargs=None),
        "reasoning_effort": ask(parsing, "hm</think>yes", chat_template_kwargs=None, reasoning_effort="low"),
    }
    for answer in answers.values():
        message = answer["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("hm", "yes")
    for fields in ({}, {"chat_template_kwargs": None, "reasoning_effort": "none"}):
        message = ask(parsing, "plain yes", **fields)["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == (None, "plain yes")


def test_hidden_reasoning_is_still_counted(parsing: Any) -> None:
    fields: dict[str, Any] = {"chat_template_kwargs": None, "include_reasoning": False}
    answer = ask(parsing, "hm</think>yes", **fields)
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (None, "yes")
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == len("hm</think")
    assert joined(stream(parsing, "hm</think>yes", **fields))["reasoning_content"] == ""


def test_a_prompt_that_opens_or_closes_the_reasoning_decides(parsing: Any) -> None:
    template = "{% for message in messages %}[user]{{ message.content }}{% endfor %}"
    # Without [assistant] at its end, all of the prompt is the answer.
    for enable_thinking in (True, False):
        kwargs = {"enable_thinking": enable_thinking}
        fields = {"chat_template": template + "<think>", "chat_template_kwargs": kwargs}
        message = joined(stream(parsing, "hm</think>yes", **fields))
        assert (message["reasoning_content"], message["content"]) == ("[user]hm", "yes<think>")
        fields["chat_template"] = template + "<think>\n\n</think>"
        message = joined(stream(parsing, "hm</think>yes", **fields))
        assert message["reasoning_content"] == "" and message["content"].startswith("[user]hm</think>yes")


def test_log_probabilities_and_ids_of_all_tokens_are_sent(parsing: Any) -> None:
    fields: dict[str, Any] = {"logprobs": True, "return_token_ids": True}
    text = "So: " + hermes(CALLS)
    (whole,) = ask(parsing, text, **fields)["choices"]
    choices = [choice for event in stream(parsing, text, **fields) for choice in event["choices"]]
    assert [i for choice in choices for i in choice.get("token_ids", ())] == whole["token_ids"]
    entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert entries == whole["logprobs"]["content"] and len(entries) == len(text) + 1


def prompt_of(served: Any, **fields: Any) -> str:
    ids = served.http.post("/tokenize", json=fields).json()["tokens"]
    text: str = served.http.post("/detokenize", json={"tokens": ids}).json()["prompt"]
    return text


def test_the_template_sees_tools_calls_and_their_results(parsing: Any) -> None:
    template = (
        "{% for tool in tools or [] %}({{ tool.function.name }}){% endfor %}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
        "{% for call in m.tool_calls or [] %}<{{ call.function.name }} {{ call.function.arguments.a + 1 }}>"
        "{% endfor %}{% endfor %}"
    )
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 41}'}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]
    fields: dict[str, Any] = {"messages": messages, "chat_template": template, "tools": TOOLS}
    shown = "[user]q[assistant]<add 42>[tool]42"
    assert prompt_of(parsing, **fields) == "(add)(list_tables)" + shown
    assert prompt_of(parsing, **fields, tool_choice="none") == shown


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": []}, "tools", "invalid_value"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools", "unsupported_parameter"),
        ({"tools": [{"type": "function"}]}, "tools", "missing_required_parameter"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools", "invalid_value"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]},
            "tools",
            "invalid_value",
        ),
        ({"tools": None, "tool_choice": "auto"}, "tool_choice", "invalid_value"),
        ({"tool_choice": "any"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "missing_required_parameter"),
        ({"tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "unsupported_parameter"),
        ({"chat_template": "{% if %}"}, "chat_template", "invalid_value"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "invalid_value",
        ),
    ],
)
def test_what_is_refused(parsing: Any, fields: Any, param: str, code: str) -> None:
    answer = parsing.http.post(URL, json=body("x", **fields))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code), error


def test_servers_without_the_flags_say_what_they_need(served: Any) -> None:
    for fields, flag in (
        ({}, "--tool-call-parser"),
        ({"chat_template": "x"}, "--trust-request-chat-template"),
    ):
        error = served.http.post(URL, json=body("x", **fields)).json()["error"]
        assert error["code"] == "unsupported_parameter" and flag in error["message"]


def test_template_variables_reach_the_template(parsing: Any) -> None:
    fields = {"chat_template": "{{ mood }}", "chat_template_kwargs": {"mood": "calm"}}
    assert prompt_of(parsing, messages=[{"role": "user", "content": "q"}], **fields) == "calm"


ARRAY = json.dumps([{"name": name, "parameters": arguments} for name, arguments in CALLS])
NAMED = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize("thoughts", ["", "<think>hm</think>\n\n"])
def test_forced_calls_are_read_and_their_grammar_reaches_the_engine(parsing: Any, thoughts: str) -> None:
    fields: dict[str, Any] = {"chat_template_kwargs": None}
    for choice, text, reason, expected in (
        ("required", ARRAY, "tool_calls", [["add", '{"a": 2, "b": 3}'], ["list_tables", "{}"]]),
        (NAMED, '{"a": 1}', "stop", [["add", '{"a": 1}']]),
    ):
        fields["tool_choice"] = choice
        (whole,) = ask(parsing, thoughts + text, **fields)["choices"]
        assert parsing.engine.submitted[-1].constraint is not None
        calls = [call["function"] for call in whole["message"]["tool_calls"]]
        assert [[call["name"], call["arguments"]] for call in calls] == expected
        assert (whole["finish_reason"], whole["message"]["content"]) == (reason, None)
        message = joined(stream(parsing, thoughts + text, **fields))
        assert [call[1:] for call in message["calls"]] == expected and message["finish_reason"] == reason
        assert message["reasoning_content"] == (whole["message"]["reasoning_content"] or "")
        assert bool(message["reasoning_content"]) == bool(thoughts)


def test_a_response_format_leaves_room_for_thoughts(parsing: Any) -> None:
    fields = {"tools": None, "chat_template_kwargs": None, "response_format": {"type": "json_object"}}
    for text, reasoning in (("<think>hm</think>{}", "hm"), ("{}", None)):
        message = ask(parsing, text, **fields)["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == (reasoning, "{}")


def test_a_schema_that_cannot_be_enforced_is_refused(parsing: Any) -> None:
    odd = {"type": "function", "function": {"name": "f", "parameters": {"type": "nope"}}}
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        error = parsing.http.post(URL, json=body("x", tools=[odd], tool_choice=choice)).json()["error"]
        assert (error["code"], error["param"]) == ("invalid_schema", "tools")


RESPONSES_TOOLS: list[Any] = [{"type": "function", **tool["function"]} for tool in TOOLS]
OUTPUT_TEXT = "<think>hm</think>So:\n" + hermes(CALLS)


def test_a_response_has_an_item_for_each_part(client: openai.OpenAI) -> None:
    response = client.responses.create(model="", input=OUTPUT_TEXT, tools=RESPONSES_TOOLS)
    reasoning, message, add, list_tables = response.output
    assert reasoning.type == "reasoning" and reasoning.content[0].text == "hm"
    assert message.type == "message" and response.output_text == "So:"
    assert add.type == list_tables.type == "function_call"
    assert (add.name, add.arguments, list_tables.arguments) == ("add", '{"a": 2, "b": 3}', "{}")
    assert add.call_id != list_tables.call_id and response.status == "completed"
    assert response.usage.output_tokens_details.reasoning_tokens == len("<think>hm</think")


def test_a_streamed_response_adds_up_to_the_whole(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "", "input": OUTPUT_TEXT, "tools": RESPONSES_TOOLS}
    whole = client.responses.create(**request)
    with client.responses.stream(**request) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [item.type for item in final.output] == [item.type for item in whole.output]
    assert final.output_text == whole.output_text
    assert [getattr(item, "arguments", "") for item in final.output] == ["", "", '{"a": 2, "b": 3}', "{}"]
    arguments = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(arguments) == '{"a": 2, "b": 3}{}'
    thoughts = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(thoughts) == "hm"
