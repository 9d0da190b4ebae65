"""POST /v1/responses, by the openai client and its own types, over an engine that repeats the input."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types.responses import Response

URL = "/v1/responses"


@pytest.fixture
def client(served: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0)


def post(served: Any, **body: Any) -> Any:
    return served.http.post(URL, json=body)


def test_a_response_is_valid_by_the_clients_types(served: Any, client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="org/alias", input="hello \u9f9c", temperature=0.5, max_output_tokens=50, metadata={"a": "b"}
    )
    assert response.output_text == "hello \u9f9c"
    assert (response.status, response.model, response.metadata) == ("completed", "org/alias", {"a": "b"})
    assert (response.temperature, response.max_output_tokens, response.top_p) == (0.5, 50, 1.0)
    assert response.id.startswith("resp_") and response.output[0].id.startswith("msg_")
    assert response.usage is not None
    assert response.usage.output_tokens == len("hello \u9f9c".encode()) + 1  # and EOS
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    Response.model_validate(post(served, input="strictly").json())


@pytest.mark.parametrize("max_output_tokens", [1, 5, 100])
@pytest.mark.parametrize("text", ["ab\U0001fae0cd", "line\u2028two\u0085"])
def test_a_stream_adds_up_to_the_whole(
    served: Any, client: openai.OpenAI, text: str, max_output_tokens: int
) -> None:
    body: dict[str, Any] = {"model": "", "input": text, "max_output_tokens": max_output_tokens}
    whole = client.responses.create(**body)
    events = list(client.responses.create(**body, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    deltas = kinds.count("output_text.delta")
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added",
        *["output_text.delta"] * deltas,
        "output_text.done", "content_part.done", "output_item.done", whole.status,
    ]  # fmt: skip
    assert "".join(event.delta for event in events if event.type.endswith("text.delta")) == whole.output_text
    final = events[-1].response
    Response.model_validate(final.to_dict())
    assert final.output_text == whole.output_text
    assert final.usage == whole.usage
    assert final.incomplete_details == whole.incomplete_details
    assert final.output[0].id == events[2].item.id == events[4].item_id


def test_a_cut_response_is_incomplete(served: Any) -> None:
    response = post(served, input="abcdef", max_output_tokens=3).json()
    assert response["status"] == response["output"][0]["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["content"][0]["text"] == "abc"


def test_the_clients_streaming_helper(client: openai.OpenAI) -> None:
    with client.responses.stream(model="", input="helped") as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output_text == "helped"


def test_input_items_become_a_conversation(served: Any) -> None:
    items = [
        {"role": "user", "content": "one"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
         "content": [{"type": "output_text", "text": "two", "annotations": []}]},
        {"role": "user", "content": [{"type": "input_text", "text": "three"}]},
    ]  # fmt: skip
    assert post(served, input=items, instructions="be brief").status_code == 200
    (request,) = served.engine.submitted[-1:]
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    served.http.post("/v1/chat/completions", json={"messages": messages})
    chat = served.engine.submitted[-1]
    assert request.prompt_token_ids.tolist() == chat.prompt_token_ids.tolist()
    assert request.params == chat.params


def test_logprobs_cover_the_text(served: Any) -> None:
    body = {"input": "ab\U0001fae0", "top_logprobs": 2, "include": ["message.output_text.logprobs"]}
    (part,) = post(served, **body).json()["output"][0]["content"]
    assert bytes(byte for entry in part["logprobs"] for byte in entry["bytes"]).decode() == part["text"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])


ADD = {
    "type": "function",
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


@pytest.fixture(scope="module")
def parsing(serve: Any) -> Any:
    with serve(tool_call_parser="hermes", reasoning_parser="qwen3") as served:
        yield served


@pytest.mark.parametrize(
    ("text", "kinds", "max_tokens"),
    [
        (f"<think>hm, so</think>Adding.{CALL}{CALL}", ["reasoning", "message", *["function_call"] * 2], None),
        (CALL, ["function_call"], None),
        ("<think>only thoughts", ["reasoning"], None),
        ("plain", ["message"], None),
        (CALL, ["function_call"], 50),
    ],
)
def test_thoughts_and_calls_are_items_of_their_own(
    parsing: Any, text: str, kinds: list[str], max_tokens: int | None
) -> None:
    client = openai.OpenAI(base_url=f"{parsing.url}/v1", api_key="unused", max_retries=0)
    thinks = {"chat_template_kwargs": {"enable_thinking": text.startswith("<think>")}}
    body: dict[str, Any] = {"model": "", "input": text, "tools": [ADD], "extra_body": thinks}
    whole = client.responses.create(**body, max_output_tokens=max_tokens)
    Response.model_validate(whole.to_dict())
    assert [item.type for item in whole.output] == kinds
    calls = [item for item in whole.output if item.type == "function_call"]
    if max_tokens is None:
        assert [(call.name, call.arguments) for call in calls] == [("add", '{"a": 2, "b": 3}')] * len(calls)
        assert {item.status for item in whole.output} == {"completed"} == {whole.status}
    else:
        assert calls[0].status == whole.status == "incomplete"
    assert len({call.call_id for call in calls}) == len(calls)

    events = list(client.responses.create(**body, max_output_tokens=max_tokens, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    streamed = events[-1].response.output
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert streamed == done
    for one, other in zip(streamed, whole.output, strict=True):
        assert without_ids(one) == without_ids(other)
    for item in (item for item in streamed if item.type == "function_call"):
        deltas = [e.delta for e in events if e.type.endswith("arguments.delta") and e.item_id == item.id]
        assert "".join(deltas) == item.arguments


def without_ids(item: Any) -> dict[str, Any]:
    return {key: value for key, value in item.to_dict().items() if key not in ("id", "call_id")}


def test_the_helper_parses_calls(parsing: Any) -> None:
    client = openai.OpenAI(base_url=f"{parsing.url}/v1", api_key="unused", max_retries=0)
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    with client.responses.stream(model="", input=CALL, tools=[ADD], extra_body=off) as stream:
        (call,) = stream.get_final_response().output
    assert call.type == "function_call" and call.arguments == '{"a": 2, "b": 3}'


def test_calls_and_their_outputs_are_read_back(parsing: Any) -> None:
    items = [
        {"role": "user", "content": "add 2 and 3"},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 2, "b": 3}'},
        {"type": "function_call_output", "call_id": "c1", "output": "5"},
    ]
    assert parsing.http.post(URL, json={"input": items, "tools": [ADD]}).status_code == 200
    function = {"name": "add", "arguments": '{"a": 2, "b": 3}'}
    messages = [
        {"role": "user", "content": "add 2 and 3"},
        {"role": "assistant", "content": None,
         "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ]  # fmt: skip
    tool = {"type": "function", "function": {key: ADD[key] for key in ADD if key != "type"}}
    chat = {"messages": messages, "tools": [tool]}
    assert parsing.http.post("/v1/chat/completions", json=chat).status_code == 200
    response, chat_request = parsing.engine.submitted[-2:]
    assert response.prompt_token_ids.tolist() == chat_request.prompt_token_ids.tolist()


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({}, 400, "input"),
        ({"input": ""}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": 5}, 400, "input"),
        ({"input": [{"role": "wizard", "content": "x"}]}, 400, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, 400, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, 400, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, 400, "input"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, 400, "input"),
        ({"input": [{"type": "function_call_output", "call_id": 1, "output": "x"}]}, 400, "input"),
        ({"input": "x", "max_output_tokens": 0}, 400, "max_output_tokens"),
        ({"input": "x", "max_output_tokens": 10**6}, 400, "max_output_tokens"),
        ({"input": "x", "max_tokens": 5}, 400, "max_tokens"),
        ({"input": "x", "messages": []}, 400, "messages"),
        ({"input": "x", "n": 2}, 400, "n"),
        ({"input": "x", "top_logprobs": 100}, 400, "top_logprobs"),
        ({"input": "x", "temperature": 3}, 400, "temperature"),
        ({"input": "x", "include": ["web_search_call.results"]}, 400, "include"),
        ({"input": "x", "truncation": "auto"}, 400, "truncation"),
        ({"input": "x", "background": True}, 400, "background"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, 400, "tools"),
        ({"input": "x", "conversation": "conv_1"}, 400, "conversation"),
        ({"input": "x", "previous_response_id": "resp_1"}, 404, "previous_response_id"),
        ({"input": "x", "model": "nope"}, 404, "model"),
    ],
)  # fmt: skip
def test_what_is_refused(served: Any, fields: dict[str, Any], status: int, param: str) -> None:
    for stream in (False, True):
        answer = served.http.post(URL, json={**fields, "stream": stream})
        assert answer.status_code == status
        assert answer.json()["error"]["param"] == param
        assert "max_completion_tokens" not in answer.json()["error"]["message"]


def test_what_is_ignored(served: Any) -> None:
    response = post(
        served, input="x", store=True, user="me", service_tier="auto", max_tool_calls=3, safety_identifier="s"
    ).json()
    assert response["status"] == "completed" and response["store"] is False


def test_a_failure_is_the_last_event(serve: Any) -> None:
    with serve(lambda request, index: list(b"abc")) as served:  # without an end
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0)
        stream = client.responses.create(model="", input="x", stream=True)
        events = []
        for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta":
                served.engine.fail_requests()
        assert events[-1].type == "response.failed"
        assert events[-1].response.status == "failed"
        assert events[-1].response.error.code == "server_error"
        assert [event.sequence_number for event in events] == list(range(len(events)))


def test_a_failure_before_the_first_token(serve: Any) -> None:
    with serve() as served:
        served.engine.paused.set()
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0)
        with client.responses.stream(model="", input="x") as stream:
            served.engine.fail_requests()
            assert [event.type for event in stream] == ["response.created", "response.failed"]
