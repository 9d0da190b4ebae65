"""Every answer and every chunk is valid by the types of the openai client, whatever was asked for."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from tests.support.sse import parse_events

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TEXT = "ab\U0001fae0c d"
USER = {"messages": [{"role": "user", "content": TEXT}]}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"n": 3},
    {"max_tokens": 2},
    {"stop": ["c"], "include_stop_str_in_output": True},
    {"return_token_ids": True},
    {"n": 2, "logprobs": True, "return_tokens_as_token_ids": True},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "logprobs": True},
]


def variants_of(path: str) -> list[dict[str, Any]]:
    if path == CHAT:
        return [*VARIANTS, {"logprobs": True, "top_logprobs": 3}]
    return [*VARIANTS, {"echo": True}, {"echo": True, "max_tokens": 0}, {"prompt": ["a", "b"]}]


CASES = [(path, variant) for path in (COMPLETIONS, CHAT) for variant in variants_of(path)]


@pytest.mark.parametrize(("path", "variant"), CASES)
def test_answers_and_chunks(served: Any, path: str, variant: dict[str, Any]) -> None:
    body = {**(USER if path == CHAT else {"prompt": TEXT, "max_tokens": 20}), **variant}
    whole_type, chunk_type = (
        (ChatCompletion, ChatCompletionChunk) if path == CHAT else (Completion, Completion)
    )
    unstreamed = {key: value for key, value in body.items() if key != "stream_options"}
    whole_type.model_validate(served.http.post(path, json=unstreamed).json(), strict=True)
    for event in parse_events(served.http.post(path, json={**body, "stream": True}).content):
        if chunk_type is Completion:  # the client has one type for both, in which an end is always there
            for choice in event["choices"]:
                assert choice["finish_reason"] in (None, "stop", "length")
                choice["finish_reason"] = choice["finish_reason"] or "stop"
        chunk_type.model_validate(event, strict=True)


def test_models(served: Any) -> None:
    for card in served.http.get("/v1/models").json()["data"]:
        Model.model_validate(card, strict=True)
        assert Model.model_validate(served.http.get(f"/v1/models/{card['id']}").json()).id == card["id"]


def test_events_of_responses(served: Any) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused")
    kinds = TypeAdapter[Any](ResponseStreamEvent)
    body: dict[str, Any] = {"input": TEXT, "include": ["message.output_text.logprobs"]}
    for event in client.responses.create(model="", **body, stream=True):
        kinds.validate_python(event.to_dict())


def test_the_chat_helper_with_several_choices(served: Any) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused")
    options: Any = {"stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2}
    with client.chat.completions.stream(model="", **USER, n=3, **options) as stream:  # type: ignore[arg-type]
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= kinds
    assert [choice.message.content for choice in final.choices] == [TEXT, f"{TEXT}#1", f"{TEXT}#2"]
    assert final.usage is not None and final.usage.prompt_tokens > 0
    for choice in final.choices:
        assert choice.message.role == "assistant" and choice.finish_reason == "stop"


def test_the_asynchronous_client(served: Any) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused") as client:
            whole = await client.chat.completions.create(model="", **USER)  # type: ignore[arg-type]
            streamed = ""
            async for chunk in await client.completions.create(model="", prompt=TEXT, stream=True):
                streamed += chunk.choices[0].text
            response = await client.responses.create(model="", input=TEXT)
            return [whole.choices[0].message.content or "", streamed, response.output_text]

    assert asyncio.run(ask()) == [TEXT] * 3
