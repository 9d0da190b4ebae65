"""Every row of bad input: status, code and param; the engine sees none of it, and clients do not retry."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
SURROGATE = "\ud83d"
SECRET = "do not echo me"

VALUE, TYPE, MISSING = "invalid_value", "invalid_type", "missing_required_parameter"
UNSUPPORTED, TOO_LONG = "unsupported_parameter", "context_length_exceeded"
BAD_ID, BAD_TEXT = "invalid_token_id", "invalid_unicode"

PROMPTS = [
    (None, MISSING, "prompt"),
    ("", VALUE, "prompt"),
    ([], VALUE, "prompt"),
    ([""], VALUE, "prompt"),
    ([[]], VALUE, "prompt"),
    (["ok", ""], VALUE, "prompt"),
    (["a", 5], TYPE, "prompt"),
    ([1, "a"], TYPE, "prompt"),
    ([1.0], TYPE, "prompt"),
    ([True], TYPE, "prompt"),
    ([[1, True]], TYPE, "prompt"),
    ([[1], "a"], TYPE, "prompt"),
    ([None], TYPE, "prompt"),
    ({"a": 1}, TYPE, "prompt"),
    (7, TYPE, "prompt"),
    ([-1], BAD_ID, "prompt"),
    ([[3], [259]], BAD_ID, "prompt"),
    ([2**70], BAD_ID, "prompt"),
    (SURROGATE, BAD_TEXT, "prompt"),
    (["ok", SURROGATE], BAD_TEXT, "prompt"),
    ([65] * 512, TOO_LONG, "prompt"),
    ("x" * 512, TOO_LONG, "prompt"),
    ("x" * 3_000_000, TOO_LONG, "prompt"),
]

FIELDS = [
    ("max_tokens", -1, VALUE),
    ("max_tokens", 1.5, VALUE),
    ("max_tokens", True, VALUE),
    ("max_tokens", "5", VALUE),
    ("max_tokens", 10_000_000, TOO_LONG),
    ("max_tokens", 10**30, TOO_LONG),
    ("temperature", -0.1, VALUE),
    ("temperature", 2.1, VALUE),
    ("temperature", True, VALUE),
    ("temperature", float("nan"), VALUE),
    ("temperature", float("inf"), VALUE),
    ("top_p", 0, VALUE),
    ("top_p", 1.1, VALUE),
    ("top_p", float("nan"), VALUE),
    ("min_p", -0.1, VALUE),
    ("min_p", 1.5, VALUE),
    ("presence_penalty", 2.5, VALUE),
    ("frequency_penalty", -2.5, VALUE),
    ("repetition_penalty", 0, VALUE),
    ("repetition_penalty", float("inf"), VALUE),
    ("repetition_penalty", 1e300, VALUE),
    ("repetition_penalty", 1e-300, VALUE),
    ("top_k", 2**70, VALUE),
    ("top_k", -2, VALUE),
    ("top_k", 1.5, VALUE),
    ("seed", 2**63, VALUE),
    ("seed", "1", VALUE),
    ("n", 0, VALUE),
    ("n", -1, VALUE),
    ("n", 129, VALUE),
    ("n", 10**400, VALUE),
    ("logit_bias", {"9999999": -100}, VALUE),
    ("logit_bias", {"-1": 5}, VALUE),
    ("logit_bias", {"abc": 1}, VALUE),
    ("logit_bias", {"259": 1}, VALUE),
    ("logit_bias", {"9" * 5000: 1}, VALUE),
    ("logit_bias", {"5": "x"}, VALUE),
    ("logit_bias", {"5": float("nan")}, VALUE),
    ("logit_bias", [1], VALUE),
    ("stop", "", VALUE),
    ("stop", ["a", ""], VALUE),
    ("stop", [5], VALUE),
    ("stop", 5, VALUE),
    ("stop", ["x"] * 65, VALUE),
    ("stop", ["x" * 9000] * 2, VALUE),
    ("stop", [SURROGATE], BAD_TEXT),
    ("stop_token_ids", [259], VALUE),
    ("stop_token_ids", [-1], VALUE),
    ("stop_token_ids", [1.0], VALUE),
    ("min_tokens", -1, VALUE),
    ("stream_options", {"include_usage": True}, VALUE),
    ("stream", "yes", VALUE),
    ("cache_salt", "", VALUE),
    ("priority", 1, UNSUPPORTED),
    ("use_beam_search", True, UNSUPPORTED),
    ("prompt_embeds", "AAAA", UNSUPPORTED),
    ("prompt_logprobs", -1, VALUE),
    ("prompt_logprobs", 21, VALUE),
    ("prompt_logprobs", True, VALUE),
    ("truncate_prompt_tokens", 0, VALUE),
    ("truncate_prompt_tokens", -2, VALUE),
    ("truncation_side", "middle", VALUE),
    ("tools", [{"type": "function", "function": {"name": "f"}}], UNSUPPORTED),
    ("functions", [], UNSUPPORTED),
]

COMPLETION_FIELDS = [
    ("suffix", "x", UNSUPPORTED),
    ("best_of", 2, UNSUPPORTED),
    ("tool_choice", "auto", UNSUPPORTED),
    ("logprobs", -1, VALUE),
    ("logprobs", 21, VALUE),
    ("logprobs", 1.5, VALUE),
]

CHAT_FIELDS = [
    ("max_tokens", 0, VALUE),
    ("max_completion_tokens", 0, VALUE),
    ("max_completion_tokens", -1, VALUE),
    ("max_completion_tokens", 10_000, TOO_LONG),
    ("top_logprobs", 1, VALUE),
    ("logprobs", 1, VALUE),
    ("modalities", ["text", "audio"], UNSUPPORTED),
    ("audio", {"voice": "x"}, UNSUPPORTED),
    ("echo", True, UNSUPPORTED),
    ("chat_template", "{{ 1 }}", UNSUPPORTED),
    ("tools", [], VALUE),
    ("tool_choice", "auto", VALUE),
    ("chat_template_kwargs", {"messages": []}, VALUE),
    ("chat_template_kwargs", {"self": 1}, VALUE),
    ("chat_template_kwargs", [], VALUE),
]

MESSAGES = [
    (None, MISSING, "messages"),
    ([], VALUE, "messages"),
    ("hi", VALUE, "messages"),
    (["hi"], VALUE, "messages[0]"),
    ([{"content": "x"}], VALUE, "messages[0].role"),
    ([{"role": "wizard", "content": "x"}], VALUE, "messages[0].role"),
    ([{"role": ["user"], "content": "x"}], VALUE, "messages[0].role"),
    ([*USER, {"role": "user"}], VALUE, "messages[1].content"),
    ([{"role": "user", "content": None}], VALUE, "messages[0].content"),
    ([{"role": "user", "content": 5}], VALUE, "messages[0].content"),
    ([{"role": "user", "content": [{"type": "text"}]}], VALUE, "messages[0].content[0].text"),
    ([{"role": "user", "content": [{"type": "image_url"}]}], UNSUPPORTED, "messages[0].content[0]"),
    ([{"role": "user", "content": ["x"]}], UNSUPPORTED, "messages[0].content[0]"),
    ([{"role": "assistant", "tool_calls": 5}], VALUE, "messages[0].tool_calls"),
    ([{"role": "user", "content": SURROGATE}], BAD_TEXT, "messages[0].content"),
    ([*USER, {"role": "system", "content": "late"}], VALUE, "messages"),
    ([{"role": "user", "content": "x" * 600}], TOO_LONG, "messages"),
    ([{"role": "user", "content": "x" * 3_000_000}], TOO_LONG, "messages"),
]


def post(served: Any, path: str, body: Any) -> httpx.Response:
    """httpx refuses NaN; clients in the wild do not."""
    return served.http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})


def check_refused(
    served: Any, path: str, body: dict[str, Any], code: str, param: str, status: int = 400
) -> dict[str, Any]:
    """Refused alike with and without `stream`, before anything reaches the engine."""
    before = len(served.engine.submitted)
    streams = (False,) if {"stream", "stream_options"} & body.keys() else (False, True)
    for stream in streams:
        answer = post(served, path, {**body, "stream": True} if stream else body)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/json"
        error: dict[str, Any] = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error")
        assert 0 < len(error["message"]) < 600 and ".py" not in error["message"]
    assert len(served.engine.submitted) == before
    return error


@pytest.mark.parametrize(("prompt", "code", "param"), PROMPTS, ids=lambda value: repr(value)[:20])
def test_prompts(served: Any, prompt: Any, code: str, param: str) -> None:
    check_refused(served, COMPLETIONS, {"prompt": prompt}, code, param)


@pytest.mark.parametrize(("field", "value", "code"), FIELDS + COMPLETION_FIELDS, ids=lambda v: repr(v)[:20])
def test_fields_of_completions(served: Any, field: str, value: Any, code: str) -> None:
    check_refused(served, COMPLETIONS, {"prompt": SECRET, field: value}, code, field)


@pytest.mark.parametrize(("field", "value", "code"), FIELDS + CHAT_FIELDS, ids=lambda v: repr(v)[:20])
def test_fields_of_chat(served: Any, field: str, value: Any, code: str) -> None:
    error = check_refused(served, CHAT, {"messages": USER, field: value}, code, field)
    assert SECRET not in error["message"]


@pytest.mark.parametrize(("messages", "code", "param"), MESSAGES, ids=lambda value: repr(value)[:30])
def test_messages(served: Any, messages: Any, code: str, param: str) -> None:
    check_refused(served, CHAT, {"messages": messages}, code, param)


def test_missing_altogether(served: Any) -> None:
    check_refused(served, COMPLETIONS, {}, MISSING, "prompt")
    check_refused(served, CHAT, {}, MISSING, "messages")


def test_min_tokens_above_max_tokens(served: Any) -> None:
    check_refused(served, COMPLETIONS, {"prompt": "a", "min_tokens": 6, "max_tokens": 5}, VALUE, "min_tokens")


def test_too_many_choices_over_all_prompts(served: Any) -> None:
    check_refused(served, COMPLETIONS, {"prompt": ["a"] * 20, "n": 128}, VALUE, "n")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize"])
def test_unknown_model(served: Any, path: str) -> None:
    body = {"prompt": "a", "messages": USER, "model": "gpt-17"}
    check_refused(served, path, body, "model_not_found", "model", status=404)


@pytest.mark.parametrize("model", [None, ""])
def test_no_model_means_the_default(served: Any, model: Any) -> None:
    assert post(served, COMPLETIONS, {"prompt": "a", "model": model}).json()["model"] == "test-model"


def test_template_errors_keep_the_templates_words(served: Any) -> None:
    messages = [*USER, {"role": "system", "content": "late"}]
    assert (
        "system must come first"
        in check_refused(served, CHAT, {"messages": messages}, VALUE, "messages")["message"]
    )


@pytest.mark.parametrize(("path", "param"), [(COMPLETIONS, "prompt"), (CHAT, "messages")])
def test_prompt_that_can_never_fit_the_kv_pool(serve: Any, path: str, param: str) -> None:
    with serve(engine={"max_prompt_tokens": 3}) as served:
        body = {"prompt": "abc"} if param == "prompt" else {"messages": USER}
        check_refused(served, path, body, TOO_LONG, param)


def test_surrogates_in_bodies_too_large_to_diagnose(served: Any) -> None:
    answer = post(served, COMPLETIONS, {"prompt": SURROGATE + "x" * 2_000_000})
    assert answer.status_code == 400


def test_context_error_tells_the_numbers(served: Any) -> None:
    body = {"prompt": [65] * 500, "max_tokens": 13}
    message = check_refused(served, COMPLETIONS, body, TOO_LONG, "max_tokens")["message"]
    assert all(number in message for number in ("512", "500", "13"))


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b'{"prompt":', b"[]", b"5", b'"x"', b"null", b"{'prompt': 1}", b'{"prompt": "\xe9"}',
     b"[" * 10_000, b'{"prompt": "\\ud83'],
    ids=lambda raw: repr(raw[:12]),
)  # fmt: skip
def test_not_a_json_object(served: Any, raw: bytes) -> None:
    for path in (COMPLETIONS, CHAT, "/tokenize", "/detokenize"):
        answer = served.http.post(path, content=raw, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("invalid_json", None)


def test_a_byte_order_mark_before_the_body_does_no_harm(served: Any) -> None:
    body = b'\xef\xbb\xbf{"prompt": "a"}'
    answer = served.http.post("/tokenize", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200 and answer.json()["count"] == 2


def test_an_infinite_number_written_out(served: Any) -> None:
    answer = served.http.post(
        COMPLETIONS,
        content=b'{"prompt": "a", "temperature": 1e999}',
        headers={"Content-Type": "application/json"},
    )
    assert answer.json()["error"]["param"] == "temperature"


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        ("/tokenize", {}, MISSING, "prompt"),
        ("/tokenize", {"prompt": ["a", 5]}, TYPE, "prompt"),
        ("/tokenize", {"prompt": ["a"] * 2049}, VALUE, "prompt"),
        ("/tokenize", {"messages": []}, VALUE, "messages"),
        ("/detokenize", {}, MISSING, "tokens"),
        ("/detokenize", {"tokens": [259]}, BAD_ID, "tokens"),
        ("/detokenize", {"tokens": [-1]}, BAD_ID, "tokens"),
        ("/detokenize", {"tokens": [1.0]}, VALUE, "tokens"),
        ("/detokenize", {"tokens": [1] * 500_001}, VALUE, "tokens"),
    ],
)
def test_token_routes(served: Any, path: str, body: Any, code: str, param: str) -> None:
    check_refused(served, path, body, code, param)


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", COMPLETIONS, 405), ("DELETE", "/v1/models", 405), ("POST", "/v1/nope", 404),
    ("GET", "/nope", 404), ("POST", COMPLETIONS + "/", 404), ("GET", "/V1/models", 404),
    ("GET", "//v1/models", 404), ("POST", "/chat/completions", 404),
])  # fmt: skip
def test_wrong_paths_and_methods(served: Any, method: str, path: str, status: int) -> None:
    answer = served.http.request(method, path)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == {404: "unknown_url", 405: "method_not_supported"}[status]
    assert ("ends in /v1" in error["message"]) == (path == "/chat/completions")


def test_one_request_for_each_bad_call(serve: Any) -> None:
    """The official client repeats 408, 409, 429 and 5xx: no fault of the caller's may be one of them."""
    calls: list[httpx.Request] = []
    with serve() as served:
        http = httpx.Client(event_hooks={"request": [calls.append]})
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", http_client=http)
        bad: list[dict[str, Any]] = [
            {"prompt": [""]},
            {"prompt": [-1]},
            {"prompt": "a", "logit_bias": {"abc": 1}},
            {"prompt": "a", "temperature": 9},
            {"prompt": "x" * 600},
            {"prompt": "a", "stop": [""]},
        ]
        for body in bad:
            with pytest.raises(openai.BadRequestError) as caught:
                client.completions.create(model="test-model", **body)
            assert caught.value.param is not None
        for messages in ([], [*USER, {"role": "system", "content": "late"}]):
            with pytest.raises(openai.BadRequestError):
                client.chat.completions.create(model="test-model", messages=messages)  # type: ignore[arg-type]
    assert len(calls) == len(bad) + 2
