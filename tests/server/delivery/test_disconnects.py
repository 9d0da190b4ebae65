"""Clients that go away or stop reading, and an engine that does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from tests.support.byte_text import byte_tokenizer
from tests.support.raw_http import open_request
from tests.support.sse import parse_events

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ENDLESS = {"ignore_eos": True, "max_tokens": 400}
LONG = {
    "engine": {"max_model_len": 10_000_000, "step_s": 0.0005, "tokens_per_handoff": 10},
    "send_buffer": 8192,
}


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("paused", [True, False])
def test_a_dropped_connection_aborts(serve: Any, stream: bool, paused: bool) -> None:
    """Whether tokens flow or the request still waits."""
    with serve(engine={"step_s": 0.01}) as served:
        if paused:
            served.engine.paused.set()
        body = {"prompt": ["a", "b"], "n": 2, "stream": stream, **ENDLESS}
        connection = open_request(served.url, COMPLETIONS, body)
        wait_until(lambda: served.engine.num_running == 4)
        assert served.http.get("/load").json()["server_load"] == 1
        connection.close()
        wait_until(lambda: served.engine.num_running == 0)
        assert set(served.engine.aborted) == {r.request_id for r in served.engine.submitted}
        wait_until(lambda: served.http.get("/load").json()["server_load"] == 0)
        served.engine.paused.clear()
        answer = served.http.post(COMPLETIONS, json={"prompt": "next"})
        assert answer.json()["choices"][0]["text"] == "next"


@pytest.mark.parametrize("stream", [True, False])
def test_a_dropped_connection_aborts_though_another_request_waits_behind(serve: Any, stream: bool) -> None:
    with serve(engine={"step_s": 0.01}) as served:
        connection = open_request(served.url, COMPLETIONS, {"prompt": "a", "stream": stream, **ENDLESS})
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: served.engine.num_running == 1)
        connection.close()
        wait_until(lambda: served.engine.num_running == 0, seconds=2)
        assert len(served.engine.aborted) == 1


def test_a_connection_dropped_within_its_request_is_no_fault(served: Any, caplog: Any) -> None:
    url = httpx.URL(served.url)
    before = len(served.engine.submitted)
    with caplog.at_level("DEBUG", logger="server"):
        connection = socket.create_connection((url.host, url.port))
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(f'{head}Content-Length: 100\r\n\r\n{{"prompt"'.encode())
        time.sleep(0.05)
        connection.close()
        wait_until(lambda: any("went away" in record.getMessage() for record in caplog.records))
    assert all(record.levelname == "DEBUG" for record in caplog.records if record.name.startswith("server"))
    assert len(served.engine.submitted) == before


def test_finished_requests_are_not_aborted(serve: Any) -> None:
    with serve() as served:
        for stream in (True, False):
            served.http.post(COMPLETIONS, json={"prompt": "abc", "stop": ["b"], "stream": stream})
            served.http.post(CHAT, json={"messages": [{"role": "user", "content": "x"}], "stream": stream})
        assert served.engine.aborted == []


def test_many_clients_leaving_at_once(serve: Any) -> None:
    with serve(engine={"step_s": 0.02, "max_queue": 500}) as served:
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True, **ENDLESS}
        connections = [open_request(served.url, CHAT, body) for _ in range(50)]
        wait_until(lambda: served.engine.num_running == 50)
        for connection in connections:
            connection.close()
        wait_until(lambda: served.engine.num_running == 0)
        assert served.http.post(COMPLETIONS, json={"prompt": "ok"}).json()["choices"][0]["text"] == "ok"


def read_all(connection: socket.socket) -> bytes:
    """The body of a chunked response, taken apart."""
    raw = b""
    while not raw.endswith(b"0\r\n\r\n"):
        piece = connection.recv(65536)
        assert piece, "closed before the end"
        raw += piece
    rest, body = raw.partition(b"\r\n\r\n")[2], b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


def test_a_slow_reader_gets_all_in_fewer_chunks_and_holds_up_nobody(serve: Any) -> None:
    num_tokens = 20_000
    with serve(**LONG) as served:
        body = {"prompt": "abcdefgh", "stream": True, "max_tokens": num_tokens, "ignore_eos": True}
        connection = open_request(served.url, COMPLETIONS, body, receive_buffer=4096)
        wait_until(lambda: served.engine.num_running == 1)
        assert served.http.post(COMPLETIONS, json={"prompt": "quick"}).status_code == 200
        wait_until(lambda: served.engine.num_running == 0, seconds=60)
        events = parse_events(read_all(connection))
        connection.close()
    text = "".join(event["choices"][0]["text"] for event in events)
    assert text == ("abcdefgh" * num_tokens)[: len(text)]
    assert len(text) == num_tokens - num_tokens // 9, "one token in nine is an EOS, which has no text"
    longest = max(len(event["choices"][0]["text"]) for event in events)
    assert longest > 1000, "what came while the client did not read left as one chunk"
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_a_reader_that_stays_stuck_is_given_up(serve: Any) -> None:
    with serve(**LONG, stuck_reader_timeout=0.3) as served:
        body = {"prompt": "a" * 100, "stream": True, "max_tokens": 9_000_000, "ignore_eos": True}
        connection = open_request(served.url, COMPLETIONS, body, receive_buffer=4096)
        wait_until(lambda: served.engine.num_running == 1)
        wait_until(lambda: served.engine.num_running == 0)
        assert served.engine.aborted == [served.engine.submitted[0].request_id]
        assert served.http.get("/load").json()["server_load"] == 0
        connection.close()


def in_background(call: Callable[[], httpx.Response]) -> tuple[threading.Thread, list[httpx.Response]]:
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    return thread, answers


@pytest.mark.parametrize(
    ("end", "status", "code"),
    [
        ("die", 503, "engine_dead"),
        ("shutdown", 503, "shutting_down"),
        ("fail_requests", 500, "internal_error"),
    ],
)
@pytest.mark.parametrize("paused", [True, False])
def test_the_engine_ends_while_answers_are_open(
    serve: Any, end: str, status: int, code: str, paused: bool
) -> None:
    with serve(engine={"step_s": 0.01}) as served:
        if paused:
            served.engine.paused.set()
        body = {"prompt": "abc", "n": 2, **ENDLESS}
        with served.http.stream("POST", COMPLETIONS, json={**body, "stream": True}) as streamed:
            thread, whole = in_background(lambda: served.http.post(COMPLETIONS, json=body))
            wait_until(lambda: served.engine.num_running == 4)
            getattr(served.engine, end)()
            raw = streamed.read()
        thread.join()
    *chunks, last = parse_events(raw)
    assert set(last) == {"error"} and set(last["error"]) == {"message", "type", "param", "code"}
    assert last["error"]["code"] == code
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert whole[0].status_code == status
    assert whole[0].json()["error"]["code"] == code


def test_requests_after_the_engines_death(serve: Any) -> None:
    with serve() as served:
        served.engine.die()
        answer = served.http.post(COMPLETIONS, json={"prompt": "a", "stream": True})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")
        assert served.http.get("/health").status_code == 503
        assert served.http.get("/v1/models").status_code == 200


def test_a_stalled_engine_gets_no_new_requests_and_loses_none(serve: Any) -> None:
    with serve() as served:
        served.engine.paused.set()
        thread, open_answer = in_background(lambda: served.http.post(COMPLETIONS, json={"prompt": "ab"}))
        wait_until(lambda: served.engine.num_running == 1)
        served.engine.stall()
        answer = served.http.post(COMPLETIONS, json={"prompt": "a", "stream": True})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_stalled")
        assert answer.headers["retry-after"] == "5"
        served.engine.recover()
        thread.join()
        assert open_answer[0].json()["choices"][0]["text"] == "ab"


def test_the_official_client_sees_an_error_in_the_middle(serve: Any) -> None:
    with serve(engine={"step_s": 0.01}) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="x")
        stream = client.chat.completions.create(
            model="test-model",
            messages=[{"role": "user", "content": "abc"}],
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for _ in range(3):
            next(stream)
        served.engine.die()
        with pytest.raises(openai.APIError) as caught:
            list(stream)
        assert caught.value.code == "engine_dead"


def test_a_fault_in_one_answer_leaves_the_others_alone(serve: Any, monkeypatch: Any) -> None:
    from server.delivery.choice import Choice

    push = Choice.push

    def push_or_fail(self: Any, token_id: int, *rest: Any) -> None:
        if token_id == byte_tokenizer().encode("!", add_special_tokens=False)[0]:
            raise RuntimeError("a bug")
        push(self, token_id, *rest)

    with serve() as served:
        monkeypatch.setattr(Choice, "push", push_or_fail)
        with served.http.stream(
            "POST", COMPLETIONS, json={"prompt": "fine " * 20, "max_tokens": 400, "stream": True}
        ) as good:
            bad = served.http.post(COMPLETIONS, json={"prompt": "ab!cd"})
            raw = served.http.post(COMPLETIONS, json={"prompt": "ab!cd", "stream": True}).content
            events = parse_events(good.read())
        assert bad.status_code == 500
        assert parse_events(raw)[-1]["error"]["code"] == "internal_error"
        assert "".join(event["choices"][0]["text"] for event in events) == "fine " * 20
        assert served.engine.num_running == 0
