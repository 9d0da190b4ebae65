"""Events: all are found however reads and lines are cut, and only those with tokens count as tokens."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client import Exchange
from loadgen.client.measure import measure
from loadgen.client.sse import split_events
from loadgen.client.stream import Stream, UsualEvent, read_stream
from loadgen.record import RequestResult
from loadgen.schedule import ScheduledRequest
from tests.support.examples import examples

TEXTS = ["Hello", " wörld", "🦊", "\u2028", 'quote " and \\', "data: [DONE]", "\n\n"]


def completion(text: str = "", **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": None, **more}], "usage": None}


def chat(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def read_events(*payloads: dict[str, Any], times: list[int] | None = None) -> Stream:
    parts = [f"data: {json.dumps(payload)}\n\n".encode() for payload in payloads]
    return read_stream(parts, times or list(range(1, len(parts) + 1)))


def measured(stream_parts: list[bytes], times: list[int], *, asked: int = 8) -> RequestResult:
    exchange = Exchange([b""], sent_ns=100, end_ns=times[-1])
    exchange.response.status = 200
    exchange.response.parts, exchange.response.part_times_ns = stream_parts, times
    request = ScheduledRequest(index=0, intended_ns=0, input_tokens=5, output_tokens=asked, trace_row=0)
    return measure(request, "id", exchange, start_ns=50)


@examples(150)
@given(
    texts=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=6),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    noise=st.sampled_from(["", ": comment", "event: x", "id: 7"]),
    ascii_only=st.booleans(),
    cuts=st.lists(st.integers(0, 10_000), max_size=20),
)
def test_every_event_is_read_at_the_time_of_its_last_byte(
    texts: list[str], line_end: str, noise: str, ascii_only: bool, cuts: list[int]
) -> None:
    events = []
    for text in texts:
        line = "data: " + json.dumps(completion(text), ensure_ascii=ascii_only)
        events.append((f"{noise}{line_end}" if noise else "") + line + line_end * 2)
    body = "".join(events).encode()
    places = sorted({0, len(body), *(cut % len(body) for cut in cuts)})
    parts = [body[a:b] for a, b in pairwise(places)]
    stream = read_stream(parts, places[1:])  # a read's time is where it ends
    ends, end = [], 0
    for event in events:
        end += len(event.encode())
        ends.append(min(place for place in places if place >= end))
    assert stream.malformed is None
    assert stream.times_ns == ends


def test_texts_survive() -> None:
    body = "".join(f"data: {json.dumps(text, ensure_ascii=False)}\n\n" for text in TEXTS).encode()
    assert [json.loads(data) for data, _ in split_events(body)] == TEXTS


@pytest.mark.parametrize(
    ("body", "datas"),
    [
        (b"data: a\n\ndata:b\n\n", [b"a", b"b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b": only a comment\n\n\n\ndata: a\n\n", [b"a"]),
        (b"data: a\r\n\r\n: x\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\n\ndata: [DONE]", [b"a", b"[DONE]"]),
        (b"data: a\n\ndata: [DONE]\n", [b"a", b"[DONE]"]),
        (b"data\n\n", [b""]),
        (b"", []),
    ],
)
def test_event_stream_format(body: bytes, datas: list[bytes]) -> None:
    events = split_events(body)
    assert [data for data, _ in events] == datas
    assert all(end <= len(body) for _, end in events)


@pytest.mark.parametrize(
    "empty",
    [
        completion(""),
        chat(role="assistant", content=""),
        chat(role="assistant"),
        chat(content=None),
        chat(),
        {"choices": []},
        {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 0}},
        completion("", logprobs=None),
        completion("", token_ids=[]),
    ],
)
def test_events_without_tokens_are_no_first_token(empty: dict[str, Any]) -> None:
    assert read_events(empty, completion("x")).times_ns == [2]


@pytest.mark.parametrize(
    ("payload", "is_content"),
    [
        (completion("x"), True),
        (completion("", token_ids=[5]), False),  # a token whose text is held back
        (chat(content="x"), True),
        (chat(reasoning_content="x"), False),
        (chat(reasoning="x"), False),
        (chat(tool_calls=[{"index": 0}]), False),
    ],
)
def test_events_with_tokens(payload: dict[str, Any], is_content: bool) -> None:
    stream = read_events(payload)
    assert stream.times_ns == [1]
    assert (stream.first_content == 0) is is_content


def sse(*payloads: dict[str, Any]) -> list[bytes]:
    return [f"data: {json.dumps(payload)}\n\n".encode() for payload in payloads] + [b"data: [DONE]\n\n"]


def usage(tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}}


def running(text: str, tokens: int) -> dict[str, Any]:
    return completion(text) | {"usage": {"completion_tokens": tokens}}


@pytest.mark.parametrize(
    ("payloads", "method", "counts", "total"),
    [
        ([running("a", 1), running("b", 4), usage(4)], "running_usage", [1, 3], 4),
        (
            [completion("a", token_ids=[1, 2]), completion("b", token_ids=[3]), usage(3)],
            "token_ids",
            [2, 1],
            3,
        ),
        ([completion("a", logprobs={"tokens": ["a", "b"]}), usage(2)], "logprobs", [2], 2),
        ([completion("a"), completion("b"), usage(2)], "usage", [1, 1], 2),
        ([completion("a"), completion("b"), usage(7)], "usage_spread", [4, 3], 7),
        ([completion("Hel"), completion("lo"), completion(" world"), usage(2)], "usage_spread", [1, 1, 0], 2),
        ([completion("a"), completion("b")], "chunks", [1, 1], 2),
    ],
)
def test_token_counts_and_their_method(
    payloads: list[dict[str, Any]], method: str, counts: list[int], total: int
) -> None:
    parts = sse(*payloads)
    result = measured(parts, list(range(200, 200 + len(parts))))
    assert result.ok
    assert (result.token_method, result.chunk_tokens.tolist(), result.output_tokens) == (
        method,
        counts,
        total,
    )


def test_latencies_of_four_chunks_of_five_tokens() -> None:
    """Role first, then 5 tokens every 100: 20 a token, 3 gaps of 100 between chunks."""
    parts = sse(completion(""), *[completion("x")] * 4, usage(20))
    result = measured(parts, [110, 250, 350, 450, 550, 560, 570])
    assert result.first_token_ns == 250 - 50 and result.since_sent(result.first_token_ns) == 150
    assert result.chunk_gaps_ns() == [100, 100, 100]
    assert list(result.token_gaps_ns()) == [(20.0, 5)] * 3
    assert result.time_per_output_token_ns() == 20.0
    assert result.end_ns == 570 - 50


def test_one_chunk_has_no_time_per_output_token() -> None:
    result = measured(sse(completion("all"), usage(9)), [200, 210, 220])
    assert result.time_per_output_token_ns() is None and not list(result.token_gaps_ns())


@pytest.mark.parametrize(
    ("tail", "failure"),
    [
        (b"", "stream_cut"),
        (b"data: [DONE]\n\n", None),
        (b'data: {"choices":[{"text":"","finish_reason":"stop"}]}\n\n', None),
        (b'data: {"error":{"message":"boom"}}\n\ndata: [DONE]\n\n', "error_in_stream"),
        (b'data: {"error":"boom"}\n\n', "error_in_stream"),
        (b"data: {oops}\n\ndata: [DONE]\n\n", "malformed_sse"),
        (b'data: {"choices":[7]}\n\ndata: [DONE]\n\n', "malformed_sse"),
        (b"data: 7\n\ndata: [DONE]\n\n", "malformed_sse"),
    ],
)
def test_how_a_stream_ends(tail: bytes, failure: str | None) -> None:
    parts = [sse(completion("x"))[0], tail] if tail else [sse(completion("x"))[0]]
    assert measured(parts, [200, 300][: len(parts)]).failure == failure


def test_a_stream_without_tokens_is_a_failure() -> None:
    assert measured(sse(completion(""), usage(0)), [200, 201, 202]).failure == "no_tokens"


def test_results_survive_the_log() -> None:
    result = measured(sse(completion("a"), completion("b"), usage(5)), [200, 300, 400, 401])
    chunks = result.chunk_ns, result.chunk_tokens, result.chunk_bytes
    assert RequestResult.from_row(json.loads(json.dumps(result.to_row())), chunks) == result


EVENT_TEXTS = st.text(st.sampled_from('ab "\\\\\\né🦊{}:,'), max_size=4)


@examples(150)
@given(
    texts=st.lists(EVENT_TEXTS, min_size=1, max_size=12),
    chat=st.booleans(),
    odd=st.integers(0, 11),
    change=st.sampled_from(["none", "finish_reason", "token_ids", "usage", "reasoning", "role"]),
)
def test_events_read_without_json_say_the_same(texts: list[str], chat: bool, odd: int, change: str) -> None:
    """The oracle parses every event; one of them, anywhere, is not of the usual kind."""
    events = []
    for place, text in enumerate(texts):
        choice: dict[str, object] = {"index": 0, "finish_reason": None}
        choice |= {"delta": {"content": text}} if chat else {"text": text}
        payload: dict[str, object] = {"id": "x", "choices": [choice]}
        if place == odd:
            if change in ("finish_reason", "token_ids"):
                choice[change] = {"finish_reason": "stop", "token_ids": [1, 2]}[change]
            elif change == "usage":
                payload["usage"] = {"completion_tokens": 3}
            elif chat and change == "reasoning":
                choice["delta"] = {"content": None, "reasoning_content": text}
            elif chat and change == "role":
                choice["delta"] = {"role": "assistant", "content": ""}
        events.append(b"data: " + orjson.dumps(payload) + b"\n\n")
    quick = read_stream(events, list(range(len(events))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UsualEvent, "matches", lambda self, data: False)
        assert read_stream(events, list(range(len(events)))) == quick
