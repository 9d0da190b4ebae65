"""POST /v1/chat/completions, through the OpenAI client where it can say it."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.support.byte_text import BOS
from tests.support.sse import joined_text, parse_events

URL = "/v1/chat/completions"


@pytest.fixture
def client(served: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")


def user(text: Any) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_plain_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="org/alias", messages=user("héllo \U0001fae0"))
    message = answer.choices[0].message
    assert (message.role, message.content, message.tool_calls) == ("assistant", "héllo \U0001fae0", None)
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.object, answer.model) == ("chat.completion", "org/alias")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streaming_helper_with_four_choices(client: openai.OpenAI) -> None:
    for _ in range(5):
        with client.chat.completions.stream(model="test-model", messages=user("abc"), n=4) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        assert [c.message.content for c in final.choices] == ["abc", "abc#1", "abc#2", "abc#3"]
        assert {c.finish_reason for c in final.choices} == {"stop"}
        assert {c.message.role for c in final.choices} == {"assistant"}


def test_streaming_helper_keeps_usage_and_logprobs(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="test-model",
        messages=user("añb"),
        logprobs=True,
        top_logprobs=3,
        stream_options={"include_usage": True},
    ) as stream:
        final = stream.get_final_completion()
    assert final.usage is not None and final.usage.completion_tokens == 5
    logprobs = final.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert len(logprobs.content) == 5
    joined = b"".join(bytes(entry.bytes or []) for entry in logprobs.content)
    assert joined.decode() == final.choices[0].message.content == "añb"
    assert all(len(entry.top_logprobs) == 3 for entry in logprobs.content)
    assert all(top.logprob >= -9999.0 for entry in logprobs.content for top in entry.top_logprobs)


def test_logprobs_without_a_top_list(served: Any) -> None:
    answer = served.http.post(URL, json={"messages": user("ab"), "logprobs": True}).json()
    assert [entry["top_logprobs"] for entry in answer["choices"][0]["logprobs"]["content"]] == [[], [], []]


def test_text_parts_and_roles(served: Any) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    answer = served.http.post("/tokenize", json={"messages": messages}).json()
    prompt = served.http.post("/detokenize", json={"tokens": answer["tokens"]}).json()["prompt"]
    assert prompt == "<s>[system]be brief[user]ab[assistant]"


def test_continue_final_message(served: Any) -> None:
    messages = [*user("q"), {"role": "assistant", "content": "begun "}]
    answer = served.http.post("/tokenize", json={"messages": messages, "continue_final_message": True}).json()
    prompt = served.http.post("/detokenize", json={"tokens": answer["tokens"]}).json()["prompt"]
    assert prompt == "<s>[user]q[assistant]begun "


@pytest.mark.parametrize("given", [{}, {"max_tokens": None}])
def test_without_max_tokens_it_goes_on_to_the_context_limit(served: Any, given: Any) -> None:
    answer = served.http.post(URL, json={"messages": user("ab"), "ignore_eos": True, **given}).json()
    usage = answer["usage"]
    assert usage["total_tokens"] == served.engine.max_model_len
    assert answer["choices"][0]["finish_reason"] == "length"


def test_template_variables_reach_the_template(served: Any) -> None:
    def prompt(**fields: Any) -> str:
        body = {"messages": user("x"), **fields}
        tokens = served.http.post("/tokenize", json=body).json()["tokens"]
        answer = served.http.post(URL, json={**body, "return_token_ids": True}).json()
        assert answer["prompt_token_ids"] == tokens
        return str(served.http.post("/detokenize", json={"tokens": tokens}).json()["prompt"])

    plain = prompt()
    thoughtless = f"{BOS}[no thoughts]{plain.removeprefix(BOS)}"
    assert prompt(chat_template_kwargs={"enable_thinking": False}) == thoughtless
    assert prompt(reasoning_effort="none") == thoughtless
    assert prompt(reasoning_effort="high") == plain


def test_default_max_tokens_flag(serve: Any) -> None:
    with serve(default_max_tokens=5) as served:
        answer = served.http.post(URL, json={"messages": user("abcdefgh")}).json()
        assert answer["usage"]["completion_tokens"] == 5
        answer = served.http.post(URL, json={"messages": user("abcdefgh"), "max_tokens": 7}).json()
        assert answer["usage"]["completion_tokens"] == 7


def test_max_completion_tokens_takes_precedence(served: Any) -> None:
    body = {"messages": user("abcdefgh"), "max_tokens": 2, "max_completion_tokens": 4}
    assert served.http.post(URL, json=body).json()["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("max_tokens", [1, 3, 6, 100])
@pytest.mark.parametrize("stop", [None, ["#1"], ["\U0001fae0"], ["c", "b\U0001fae0c"]])
def test_stream_equals_whole(served: Any, max_tokens: int, stop: Any) -> None:
    body = {"messages": user("ab\U0001fae0cd"), "n": 2, "max_tokens": max_tokens, "stop": stop}
    whole = served.http.post(URL, json=body).json()
    events = parse_events(served.http.post(URL, json={**body, "stream": True}).content)
    for choice in whole["choices"]:
        assert joined_text(events, choice["index"]) == choice["message"]["content"]
        reasons = [
            c["finish_reason"]
            for e in events
            for c in e["choices"]
            if c["index"] == choice["index"] and c["finish_reason"]
        ]
        assert reasons == [choice["finish_reason"]]
