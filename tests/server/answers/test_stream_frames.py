"""The bytes of a stream, and the order of its events."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sse import joined_text, parse_events

ODD_TEXT = 'line\u2028para\u2029next\u0085 \x1c\x1d\x1e\x0b\x0c \U0001fae0 \u9f9c "q" \\ \r\n\n end'


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "stream": True, **fields}


def completion(text: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": text, "stream": True, "max_tokens": 400, **fields}


ENDPOINTS = [("/v1/completions", completion), ("/v1/chat/completions", chat)]


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_framing_survives_any_text(served: Any, path: str, body: Any) -> None:
    answer = served.http.post(path, json=body(ODD_TEXT))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert joined_text(parse_events(answer.content)) == ODD_TEXT


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_httpx_line_iterator_sees_whole_lines(served: Any, path: str, body: Any) -> None:
    with served.http.stream("POST", path, json=body(ODD_TEXT)) as answer:
        assert all(line == "" or line.startswith("data: ") for line in answer.iter_lines())


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_constant_fields_and_keys(served: Any, path: str, body: Any) -> None:
    events = parse_events(served.http.post(path, json=body("some text")).content)
    assert len({(e["id"], e["created"], e["model"], e["object"]) for e in events}) == 1
    (choice,) = {tuple(sorted(e["choices"][0])) for e in events}
    text_key = "text" if path == "/v1/completions" else "delta"
    assert choice == tuple(sorted((text_key, "index", "logprobs", "finish_reason", "stop_reason")))
    assert all("usage" not in e for e in events)
    reasons = [e["choices"][0]["finish_reason"] for e in events]
    assert reasons == [None] * (len(events) - 1) + ["stop"]


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_usage_comes_last_and_alone(served: Any, path: str, body: Any) -> None:
    request = body("abc", n=2, stream_options={"include_usage": True})
    *chunks, last = parse_events(served.http.post(path, json=request).content)
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len("abc") + len("abc#1") + 2
    whole = served.http.post(path, json={**request, "stream": False, "stream_options": None}).json()
    assert whole["usage"] == last["usage"]
    finished = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert sorted(finished) == [0, 1]


def test_roles_come_first_in_index_order_and_once(served: Any) -> None:
    events = parse_events(served.http.post("/v1/chat/completions", json=chat("abc", n=4)).content)
    first = [(e["choices"][0]["index"], e["choices"][0]["delta"]) for e in events[:4]]
    assert first == [(i, {"role": "assistant", "content": ""}) for i in range(4)]
    assert all("role" not in e["choices"][0]["delta"] for e in events[4:])
    assert [joined_text(events, i) for i in range(4)] == ["abc", "abc#1", "abc#2", "abc#3"]


def test_no_event_before_the_first_token(serve: Any) -> None:
    with serve(sse_ping_interval=0.05) as served:
        served.engine.paused.set()
        with served.http.stream("POST", "/v1/chat/completions", json=chat("abc")) as answer:
            pieces = answer.iter_raw()
            assert [next(pieces) for _ in range(3)] == [b": keep-alive\n\n"] * 3
            served.engine.paused.clear()
            events = parse_events(b"".join(pieces))
    assert joined_text(events) == "abc"


def test_keep_alive_comments_can_be_off(serve: Any) -> None:
    with serve(engine={"step_s": 0.05}, sse_ping_interval=0) as served:
        assert b": keep-alive" not in served.http.post("/v1/completions", json=completion("abcdef")).content


def test_tokens_that_came_together_leave_as_one_chunk(serve: Any) -> None:
    with serve(engine={"tokens_per_handoff": 8, "step_s": 0.01}) as served:
        request = completion("x" * 79, logprobs=0, stream_options={"include_usage": True})
        events = parse_events(served.http.post("/v1/completions", json=request).content)
    sizes = [len(e["choices"][0]["logprobs"]["tokens"]) for e in events if e["choices"]]
    assert sum(sizes) == events[-1]["usage"]["completion_tokens"] == 80
    assert max(sizes) > 1 and joined_text(events) == "x" * 79


def test_silent_tokens_make_no_event(served: Any) -> None:
    """Three of an emoji's four bytes have no text yet; the EOS never has any."""
    events = parse_events(served.http.post("/v1/completions", json=completion("\U0001fae0")).content)
    assert [e["choices"][0]["text"] for e in events] in (["\U0001fae0", ""], ["\U0001fae0"])


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_running_usage_in_every_chunk(served: Any, path: str, body: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = parse_events(served.http.post(path, json=body("abcd", stream_options=options)).content)
    counts = [e["usage"]["completion_tokens"] for e in events]
    assert counts == sorted(counts) and counts[-1] == 5
    assert all(
        e["usage"]["total_tokens"] == e["usage"]["prompt_tokens"] + c
        for e, c in zip(events, counts, strict=True)
    )


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_token_ids_and_logprobs_add_up_to_the_whole(served: Any, path: str, body: Any) -> None:
    is_chat = "chat" in path
    wanted = {"logprobs": True, "top_logprobs": 2} if is_chat else {"logprobs": 2}
    request = body("añb\U0001fae0c", return_token_ids=True, **wanted)
    events = parse_events(served.http.post(path, json=request).content)
    whole = served.http.post(path, json={**request, "stream": False}).json()
    choices = [e["choices"][0] for e in events]
    expected = whole["choices"][0]
    assert [i for c in choices for i in c.get("token_ids", [])] == expected["token_ids"]
    assert len(expected["token_ids"]) == whole["usage"]["completion_tokens"]
    keys = ["content"] if is_chat else ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
    for key in keys:
        streamed = [entry for c in choices if c["logprobs"] for entry in c["logprobs"][key]]
        assert streamed == expected["logprobs"][key]
    prompt_ids = (events[0] if is_chat else choices[0])["prompt_token_ids"]
    assert prompt_ids == (whole if is_chat else expected)["prompt_token_ids"]
    assert len(prompt_ids) == whole["usage"]["prompt_tokens"]
