"""Reported cases of HTTP: keys, preflight, connections, ids, floods."""

from __future__ import annotations

import http.client
import json
import threading
import time
from typing import Any

import httpx

from tests.end_to_end.conftest import ALLOWED_ORIGIN
from tests.support.api import API_KEY, CHAT, COMPLETIONS, at_once, post, token_ids
from tests.support.process import ServerProcess
from tests.support.sse import parse_events

OPEN_PATHS = {"/health", "/ping", "/metrics", "/version"}  # the last two by --public-metrics
UVICORN_KEEP_ALIVE_S = 5


def test_h5_every_documented_route_but_the_open_ones_needs_the_key(guarded: ServerProcess) -> None:
    headers = {"Authorization": f"Bearer {API_KEY}"}
    paths: dict[str, dict[str, Any]] = guarded.http.get("/openapi.json", headers=headers).json()["paths"]
    assert {COMPLETIONS, CHAT, "/tokenize", "/metrics"} <= paths.keys()
    for path, methods in [*paths.items(), ("/docs", {"get": {}}), ("/openapi.json", {"get": {}})]:
        for method in methods:
            response = guarded.http.request(method, path)
            assert (response.status_code == 401) == (path not in OPEN_PATHS), (method, path)


def test_h7_a_preflight_needs_no_key(guarded: ServerProcess) -> None:
    preflight = {
        "Origin": ALLOWED_ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
    }
    response = guarded.http.options(CHAT, headers=preflight)
    assert response.status_code in (200, 204)
    assert response.headers["access-control-allow-origin"] == ALLOWED_ORIGIN
    assert "authorization" in response.headers["access-control-allow-headers"].lower()


def test_h9_an_idle_connection_stays_open(roomy: ServerProcess) -> None:
    url = httpx.URL(roomy.base_url)
    connection = http.client.HTTPConnection(url.host, url.port or 80, timeout=60)
    body = json.dumps({"prompt": "Keep", "max_tokens": 2})
    for idle_s in (UVICORN_KEEP_ALIVE_S + 1.5, 0):
        connection.request("POST", COMPLETIONS, body, {"Content-Type": "application/json"})
        first_socket = connection.sock
        assert connection.getresponse().read()
        time.sleep(idle_s)
        assert connection.sock is first_socket
    connection.close()


def test_h10_one_id_for_two_live_streams(roomy: ServerProcess) -> None:
    headers = {"X-Request-Id": "same-id"}

    def call(prompt: str) -> httpx.Response:
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 200, "ignore_eos": True, "stream": True}
        return post(roomy, COMPLETIONS, {**body, "return_token_ids": True}, headers)

    prompts = ["First prompt", "Second one"]
    responses = at_once([lambda p=p: call(p) for p in prompts])
    for prompt, response in zip(prompts, responses, strict=True):
        assert b"same-id" not in response.content
        assert response.headers["x-request-id"] == "same-id"
        ids = [i for event in parse_events(response.content) for i in event["choices"][0]["token_ids"]]
        assert ids == token_ids(roomy, prompt, max_tokens=200, ignore_eos=True)


def test_h10_huge_and_odd_ids_are_not_taken(roomy: ServerProcess) -> None:
    for odd in (b"x" * 50_000, "žluť".encode(), b"a b"):
        response = roomy.http.get("/health", headers={"X-Request-Id": odd})
        assert response.status_code == 200
        assert len(response.headers["x-request-id"]) == 32


def test_h11_a_huge_prompt_holds_up_nobody(embedded: ServerProcess) -> None:
    """3 MB are refused by their size; 400 kB have to be tokenized to know that they are too many."""
    answers: list[httpx.Response] = []

    def send() -> None:
        prompts = ["word " * (size // 5) for size in (3_000_000, 400_000)]
        answers.extend(post(embedded, COMPLETIONS, {"prompt": prompt}) for prompt in prompts)

    neighbour = threading.Thread(
        target=lambda: answers.append(post(embedded, COMPLETIONS, {"prompt": "Hi", "max_tokens": 20}))
    )
    sender = threading.Thread(target=send)
    neighbour.start()
    sender.start()
    slowest = 0.0
    while sender.is_alive():
        asked_at = time.monotonic()
        assert embedded.http.get("/health").status_code == 200
        slowest = max(slowest, time.monotonic() - asked_at)
    sender.join()
    neighbour.join()
    assert slowest < 5, "generous: the machine may be busy"
    assert sorted(response.status_code for response in answers) == [200, 400, 400]
    for response in answers:
        if response.status_code == 400:
            error = response.json()["error"]
            assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")


def test_h12_what_the_queue_cannot_take_is_told_to_come_later(guarded: ServerProcess) -> None:
    """Two run and eight wait; the accepted ones are answered in full."""
    body = {"prompt": "Flood", "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    expected = token_ids(guarded, "Flood", max_tokens=100, ignore_eos=True)
    rejected_before = rejections(guarded)
    responses = at_once([lambda: post(guarded, COMPLETIONS, {**body, "max_tokens": 100})] * 40)
    accepted = [response for response in responses if response.status_code == 200]
    rejected = [response for response in responses if response.status_code == 429]
    assert len(accepted) + len(rejected) == 40
    assert len(accepted) >= 8 and rejected
    for response in accepted:
        assert response.json()["choices"][0]["token_ids"] == expected
    for response in rejected:
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "queue_full"
    assert rejections(guarded) == rejected_before + len(rejected)


def rejections(server: ServerProcess) -> float:
    return server.metric("http_error_responses_total", absent=0, status="429")
