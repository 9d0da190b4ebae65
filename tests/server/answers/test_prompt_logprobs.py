"""Scores of the prompt on request, in vLLM's shape, alone and beside echo."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_engine import PROMPT_LOGPROB


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_completions(served: Any, count: int, max_tokens: int) -> None:
    body = {
        "prompt": ["añb", "x"],
        "prompt_logprobs": count,
        "max_tokens": max_tokens,
        "return_token_ids": True,
    }
    whole = served.http.post("/v1/completions", json=body).json()
    assert len(whole["choices"]) == 2
    for choice in whole["choices"]:
        first, *others = choice["prompt_logprobs"]
        ids = choice["prompt_token_ids"]
        assert first is None and len(others) == len(ids) - 1
        for token_id, entries in zip(ids[1:], others, strict=True):
            # The fake engine calls each prompt token the most likely one, and the next id the runner-up.
            assert list(entries) == [str(token_id), str((token_id + 1) % 259)][: max(count, 1)]
            assert entries[str(token_id)]["logprob"] == PROMPT_LOGPROB
            assert entries[str(token_id)]["rank"] == (1 if count else None)
            assert all(entry["logprob"] >= -9999 for entry in entries.values())
    decoded = [entries[str(i)]["decoded_token"] for i, entries in zip(ids[1:], others, strict=True)]
    assert decoded == ["x"]


def test_chats_have_them_beside_the_choices(served: Any) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "n": 2, "prompt_logprobs": 1}
    whole = served.http.post("/v1/chat/completions", json=body).json()
    assert len(whole["prompt_logprobs"]) == whole["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in whole["choices"][0]


@pytest.mark.parametrize(("logprobs", "count"), [(0, 5), (5, 0), (2, 2)])
def test_echo_lists_as_many_as_logprobs_asks_for(served: Any, logprobs: int, count: int) -> None:
    body = {"prompt": "abc", "echo": True, "logprobs": logprobs, "max_tokens": 1}
    (both,) = served.http.post("/v1/completions", json={**body, "prompt_logprobs": count}).json()["choices"]
    (alone,) = served.http.post("/v1/completions", json=body).json()["choices"]
    assert both["logprobs"] == alone["logprobs"]
    assert len(both["prompt_logprobs"][1]) == max(count, 1)


def test_they_are_refused_in_streams_and_without_need_are_absent(served: Any) -> None:
    body = {"prompt": "abc", "prompt_logprobs": 1, "stream": True}
    answer = served.http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt_logprobs")
    whole = served.http.post("/v1/completions", json={"prompt": "abc"}).json()
    assert "prompt_logprobs" not in whole["choices"][0]


def test_more_of_them_than_memory_holds_are_refused(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.preparation.generation_builder.MAX_PROMPT_LOGPROBS", 12)
    for fields in ({"prompt_logprobs": 1}, {"logprobs": 1, "echo": True}):
        body = {"prompt": [[97, 98, 99], [97, 98, 99]], **fields}
        assert served.http.post("/v1/completions", json=body).status_code == 200
        refused = served.http.post(
            "/v1/completions", json={**body, "prompt": [[97, 98, 99], [97, 98, 99, 100]]}
        )
        assert refused.status_code == 400 and refused.json()["error"]["param"] in fields
