"""Emptying the prefix cache and ending requests: off by default, behind the key, and truthful."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_engine import NUM_CACHED_BLOCKS

ENDLESS = {"prompt": "x", "max_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def admin(serve: Any) -> Any:
    with serve(enable_admin_routes=True) as served:
        yield served


def wait_for(served: Any, count: int) -> None:
    while served.engine.num_running != count:
        pass


def test_the_cache_is_emptied(admin: Any) -> None:
    for path in ("/reset_prefix_cache", "/flush_cache"):
        assert admin.http.post(path).json() == {"blocks_forgotten": NUM_CACHED_BLOCKS}


def test_an_engine_that_has_ended_is_not_waited_for_long(serve: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("server.routes.admin.ENGINE_REPLY_S", 0.05)
    with serve(enable_admin_routes=True) as served:
        served.engine.die()
        answer = served.http.post("/reset_prefix_cache")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_stalled")


def test_a_stream_is_ended_by_the_id_of_its_answer(admin: Any) -> None:
    admin.engine.paused.clear()
    with admin.http.stream("POST", "/v1/completions", json={**ENDLESS, "stream": True}) as stream:
        lines = stream.iter_lines()
        answer_id = next(lines).split('"id":"')[1].split('"')[0]
        answer = admin.http.post("/abort_request", json={"request_id": answer_id})
        assert answer.json() == {"aborted": [answer_id]}
        rest = [line for line in lines if line]
    assert '"request_aborted"' in rest[-2] and rest[-1] == "data: [DONE]"
    assert admin.engine.num_running == 0
    again = admin.http.post("/abort_request", json={"request_id": answer_id})
    assert (again.status_code, again.json()["error"]["code"]) == (404, "request_not_found")


def test_all_requests_are_ended(serve: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with serve(enable_admin_routes=True) as served, ThreadPoolExecutor(3) as pool:
        assert served.http.post("/abort_request", json={"abort_all": True}).json() == {"aborted": []}
        served.engine.paused.set()
        calls = [pool.submit(served.http.post, "/v1/completions", json=ENDLESS) for _ in range(3)]
        wait_for(served, 3)
        aborted = served.http.post("/abort_request", json={"abort_all": True}).json()["aborted"]
        assert len(set(aborted)) == 3
        for call in calls:
            answer = call.result()
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "request_aborted")
            assert answer.headers["x-should-retry"] == "false"
        assert served.engine.num_running == 0


def test_something_must_be_named(admin: Any) -> None:
    answer = admin.http.post("/abort_request", json={})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "request_id")


def test_they_are_off_by_default_and_behind_the_key(serve: Any, served: Any) -> None:
    with serve(enable_admin_routes=True, api_key=("secret",)) as guarded:
        for path in ("/reset_prefix_cache", "/abort_request"):
            assert guarded.http.post(path).status_code == 401
            assert served.http.post(path).status_code == 404
