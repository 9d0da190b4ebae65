"""Fields without an effect: ignored, or refused under --strict-params; routes refused in words."""

from __future__ import annotations

from typing import Any

import pytest

IGNORED = {
    "user": "me", "safety_identifier": "s", "metadata": {"a": "b"}, "store": True, "service_tier": "auto",
    "prompt_cache_key": "k", "prompt_cache_retention": "24h", "verbosity": "low",
}  # fmt: skip


@pytest.fixture(scope="module")
def strict(serve: Any) -> Any:
    with serve(strict_params=True) as served:
        yield served


def bodies() -> list[tuple[str, dict[str, Any]]]:
    return [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/responses", {"input": "x"}),
        ("/tokenize", {"prompt": "x"}),
    ]


@pytest.mark.parametrize(("path", "body"), bodies())
def test_known_fields_without_effect_pass_under_strict_params(
    strict: Any, path: str, body: dict[str, Any]
) -> None:
    assert strict.http.post(path, json={**body, **IGNORED}).status_code == 200


@pytest.mark.parametrize(("path", "body"), bodies())
def test_what_nobody_knows_is_refused_only_under_strict_params(
    strict: Any, served: Any, path: str, body: dict[str, Any]
) -> None:
    body = {**body, "temprature": 0.5}
    assert served.http.post(path, json=body).status_code == 200
    error = strict.http.post(path, json=body).json()["error"]
    assert (error["code"], error["param"]) == ("unknown_parameter", "temprature")


def test_embeddings_are_a_404_that_says_why(served: Any) -> None:
    answer = served.http.post("/v1/embeddings", json={"input": "x", "model": "test-model"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "embeddings" in error["message"]


def test_what_took_the_place_of_old_fields_is_told(served: Any) -> None:
    for name, instead in (("functions", "tools"), ("function_call", "tool_choice")):
        body = {"messages": [{"role": "user", "content": "x"}], name: [{"name": "f"}]}
        error = served.http.post("/v1/chat/completions", json=body).json()["error"]
        assert error["code"] == "unsupported_parameter" and f"use {instead}" in error["message"]
