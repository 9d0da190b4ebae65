"""The served schema: every field is described, the ranges are the real ones, keys are where they are."""

from __future__ import annotations

from typing import Any

import pytest

from server.protocol.admin import AbortRequest
from server.protocol.chat import ChatRequest
from server.protocol.completions import CompletionRequest
from server.protocol.field_notes import REQUIRED, note_of
from server.protocol.responses import ResponsesRequest
from server.protocol.tokenize import DetokenizeRequest, TokenizeRequest

MODELS = (
    CompletionRequest, ChatRequest, ResponsesRequest, TokenizeRequest, DetokenizeRequest, AbortRequest,
)  # fmt: skip
PATHS = {
    "CompletionRequest": "/v1/completions",
    "ChatRequest": "/v1/chat/completions",
    "ResponsesRequest": "/v1/responses",
}
PROMPTS: dict[str, dict[str, Any]] = {
    "CompletionRequest": {"prompt": "x"},
    "ChatRequest": {"messages": [{"role": "user", "content": "x"}]},
    "ResponsesRequest": {"input": "x"},
}
TOGETHER = {("ChatRequest", "top_logprobs"): {"logprobs": True}}
"""What a field needs beside it to be allowed."""


def fields() -> list[tuple[str, str]]:
    return [(model.__name__, field) for model in MODELS for field in model.model_fields]


def test_every_field_has_a_note() -> None:
    for model, field in fields():
        assert note_of(model, field).text
    assert {(model, field) for model, field in REQUIRED.items()} <= set(fields())


def bounds() -> list[tuple[str, str, float, bool]]:
    """(model, field, value, whether it is allowed) at and just beyond each bound."""
    cases = []
    for model, field in fields():
        if model not in PATHS:
            continue
        schema = note_of(model, field).schema
        step = 1 if _is_integer(model, field) else 0.0001
        for key, direction in (("minimum", -1), ("maximum", 1)):
            if key in schema:
                cases.append((model, field, schema[key], True))
                cases.append((model, field, schema[key] + direction * step, False))
        if "exclusiveMinimum" in schema:
            cases.append((model, field, schema["exclusiveMinimum"], False))
    return cases


def _is_integer(model: str, field: str) -> bool:
    (body,) = [m for m in MODELS if m.__name__ == model]
    return body.model_fields[field].annotation == int | None


@pytest.mark.parametrize(("model", "field", "value", "allowed"), bounds())
def test_the_ranges_are_those_of_the_checks(
    served: Any, model: str, field: str, value: float, allowed: bool
) -> None:
    body = {**PROMPTS[model], **TOGETHER.get((model, field), {}), field: value}
    answer = served.http.post(PATHS[model], json=body)
    assert answer.status_code == (200 if allowed else 400), answer.text
    if not allowed:
        assert answer.json()["error"]["param"] == field


def test_these_are_all_the_bodies(serve: Any) -> None:
    with serve(enable_admin_routes=True) as served:
        schema = served.http.get("/openapi.json").json()
    bodies = [
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for operations in schema["paths"].values()
        for operation in operations.values()
        if "requestBody" in operation
    ]
    assert sorted(bodies) == sorted(model.__name__ for model in MODELS)


def test_required_fields_are_marked(served: Any) -> None:
    schemas = served.http.get("/openapi.json").json()["components"]["schemas"]
    assert schemas["CompletionRequest"]["required"] == ["prompt"]
    assert "required" not in schemas["TokenizeRequest"]


def test_only_guarded_routes_ask_for_a_key(serve: Any) -> None:
    with serve(api_key=("secret",)) as guarded:
        schema = guarded.http.get("/openapi.json", headers={"x-api-key": "secret"}).json()
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            is_open = path == "/health"
            assert ("security" in operation) == ("401" in operation["responses"]) == (not is_open), path
            assert "422" not in operation["responses"]


def test_no_secret_and_no_schema_without_docs(serve: Any) -> None:
    with serve(api_key=("secret-key",), disable_docs=True) as bare:
        headers = {"x-api-key": "secret-key"}
        assert bare.http.get("/openapi.json", headers=headers).status_code == 404
        assert bare.http.get("/docs", headers=headers).status_code == 404
    with serve(api_key=("secret-key",)) as documented:
        assert "secret-key" not in documented.http.get("/openapi.json", headers=headers).text
