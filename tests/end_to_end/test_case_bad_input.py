"""Reported cases of bad input: a clear 400 that names the field, one request a call, and no harm done."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import openai
import pytest

from tests.support.api import CHAT, COMPLETIONS, answer, complete, post
from tests.support.case_model import MAX_MODEL_LEN, VOCAB_SIZE
from tests.support.process import ServerProcess

USER = {"role": "user", "content": "hi"}
VALUE, TOO_LONG = "invalid_value", "context_length_exceeded"

BAD_COMPLETIONS: list[tuple[dict[str, Any], str, str]] = [
    # B1: prompts without content
    ({"prompt": ""}, VALUE, "prompt"),
    ({"prompt": [""]}, VALUE, "prompt"),
    ({"prompt": []}, VALUE, "prompt"),
    ({"prompt": [[]]}, VALUE, "prompt"),
    ({"prompt": ["ok", ""]}, VALUE, "prompt"),
    ({"prompt": ["a", 5]}, "invalid_type", "prompt"),
    # what the device must not see
    ({"prompt": [-1]}, "invalid_token_id", "prompt"),
    ({"prompt": [VOCAB_SIZE]}, "invalid_token_id", "prompt"),
    ({"prompt": [2**70]}, "invalid_token_id", "prompt"),
    # B3
    ({"logit_bias": {"9999999": -100}}, VALUE, "logit_bias"),
    ({"logit_bias": {"-1": 5}}, VALUE, "logit_bias"),
    ({"logit_bias": {"abc": 1}}, VALUE, "logit_bias"),
    ({"stop_token_ids": [VOCAB_SIZE], "min_tokens": 1}, VALUE, "stop_token_ids"),
    # L1, L3
    ({"max_tokens": 10_000_000}, TOO_LONG, "max_tokens"),
    ({"prompt": [5] * MAX_MODEL_LEN}, TOO_LONG, "prompt"),
    ({"prompt": [5] * (MAX_MODEL_LEN + 500)}, TOO_LONG, "prompt"),
    ({"prompt": "?" + "x" * (MAX_MODEL_LEN + 500)}, TOO_LONG, "prompt"),
    # ranges
    ({"max_tokens": -1}, VALUE, "max_tokens"),
    ({"temperature": 2.5}, VALUE, "temperature"),
    ({"top_p": 0}, VALUE, "top_p"),
    ({"top_k": -2}, VALUE, "top_k"),
    ({"min_p": 2}, VALUE, "min_p"),
    ({"repetition_penalty": 0}, VALUE, "repetition_penalty"),
    ({"presence_penalty": 3}, VALUE, "presence_penalty"),
    ({"n": 0}, VALUE, "n"),
    ({"n": 1000}, VALUE, "n"),
    ({"logprobs": 21}, VALUE, "logprobs"),
    ({"min_tokens": 9, "max_tokens": 5}, VALUE, "min_tokens"),
    ({"stop": [""]}, VALUE, "stop"),
    ({"stream_options": {"include_usage": True}}, VALUE, "stream_options"),
    # what would change the answer and is not offered
    ({"suffix": "end"}, "unsupported_parameter", "suffix"),
    ({"best_of": 3}, "unsupported_parameter", "best_of"),
    ({"use_beam_search": True}, "unsupported_parameter", "use_beam_search"),
    ({"guided_regex": "("}, "invalid_schema", "guided_regex"),
]

BAD_CHATS: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, VALUE, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, VALUE, "messages[0].role"),
    # B9: the template's own refusals
    ({"messages": [USER, USER]}, VALUE, "messages"),
    ({"messages": [USER, {"role": "system", "content": "late"}]}, VALUE, "messages"),
    ({"messages": [USER], "max_tokens": 0}, VALUE, "max_tokens"),
    ({"messages": [USER], "max_tokens": -1}, VALUE, "max_tokens"),
    ({"messages": [USER], "top_logprobs": 3}, VALUE, "top_logprobs"),
    ({"messages": [{"role": "user", "content": "x" * 5000}]}, TOO_LONG, "messages"),
]


@pytest.fixture
def client(roomy: ServerProcess) -> openai.OpenAI:
    """With the retries that it makes by default."""
    return openai.OpenAI(base_url=f"{roomy.base_url}/v1", api_key="unused", timeout=60)


def num_errors(server: ServerProcess) -> float:
    """Answers with an error status so far: what the server saw, not what the client tells."""
    return server.metric("http_error_responses_total", absent=0)


def refusal(call: Callable[[], Any]) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as caught:
        call()
    return caught.value


def test_b1_b3_b10_l1_l3_bad_completions_are_refused_once(
    roomy: ServerProcess, client: openai.OpenAI
) -> None:
    expected = complete(roomy, "Good", max_tokens=8)["choices"]
    before = num_errors(roomy)
    for body, code, param in BAD_COMPLETIONS:
        extra = {"prompt": "Good", **body}
        error = refusal(partial(client.completions.create, model="", prompt="", extra_body=extra))
        assert (error.code, error.param) == (code, param)
    assert num_errors(roomy) == before + len(BAD_COMPLETIONS), "the client repeated some"
    assert complete(roomy, "Good", max_tokens=8)["choices"] == expected


def test_b9_b10_bad_chats_are_refused_once(roomy: ServerProcess, client: openai.OpenAI) -> None:
    before = num_errors(roomy)
    for body, code, param in BAD_CHATS:
        error = refusal(partial(client.chat.completions.create, model="", messages=[], extra_body=body))
        assert (error.code, error.param) == (code, param)
        if body["messages"][1:] and param == "messages":
            assert "roles must alternate" in error.message
    assert num_errors(roomy) == before + len(BAD_CHATS), "the client repeated some"


def test_b10_unknown_models_are_refused_once(roomy: ServerProcess, client: openai.OpenAI) -> None:
    before = num_errors(roomy)
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-17", prompt="a")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert num_errors(roomy) == before + 1


def test_b11_every_error_has_the_same_shape(roomy: ServerProcess) -> None:
    json_type = {"Content-Type": "application/json"}
    cases: list[tuple[str, str, bytes, int, str]] = [
        ("POST", COMPLETIONS, b'{"prompt":', 400, "invalid_json"),
        ("POST", COMPLETIONS, b"[]", 400, "invalid_json"),
        ("POST", COMPLETIONS, b"", 400, "invalid_json"),
        ("POST", CHAT, b'{"prompt": "\xe9"}', 400, "invalid_json"),
        ("GET", COMPLETIONS, b"", 405, "method_not_supported"),
        ("POST", "/v1/nope", b"{}", 404, "unknown_url"),
    ]
    for method, path, content, status, code in cases:
        response = roomy.http.request(method, path, content=content, headers=json_type)
        assert response.status_code == status
        assert set(response.json()) == {"error"}
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert response.json()["error"]["code"] == code


def test_l3_exactly_the_context_is_the_limit(roomy: ServerProcess) -> None:
    ids = [5] * (MAX_MODEL_LEN - 1)
    assert complete(roomy, ids, ignore_eos=True)["usage"] == {
        "prompt_tokens": MAX_MODEL_LEN - 1,
        "completion_tokens": 1,
        "total_tokens": MAX_MODEL_LEN,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert post(roomy, COMPLETIONS, {"prompt": ids, "max_tokens": 2}).status_code == 400


@pytest.mark.parametrize("given", [{}, {"max_tokens": None}])
def test_l4_without_max_tokens(embedded: ServerProcess, roomy: ServerProcess, given: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "What is the capital of Japan?"}]
    chat = answer(embedded, CHAT, {"messages": messages, "temperature": 0, **given})
    assert chat["choices"][0]["finish_reason"] == "stop"
    assert chat["choices"][0]["message"]["content"] == "The capital of Japan is Tokyo."
    whole = complete(roomy, "One two three", ignore_eos=True, **given)
    assert whole["usage"]["completion_tokens"] == 16
