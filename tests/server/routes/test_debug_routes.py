from __future__ import annotations

from typing import Any


def test_a_request_can_be_looked_up_by_the_id_of_its_answer(serve: Any) -> None:
    with serve() as served:
        answer = served.http.post("/v1/completions", json={"prompt": "hello"}).json()
        record = served.http.get(f"/debug/requests/{answer['id']}").json()
        listed = served.http.get("/debug/requests").json()
    assert record["request_id"] == answer["id"]
    assert record["num_prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert 0 < record["arrived_ns"] <= record["tokenized_ns"]
    assert [entry["request_id"] for entry in listed] == [answer["id"]]
    assert "token_times_ns" not in listed[0]


def test_perfetto_format_is_a_chrome_trace(serve: Any) -> None:
    with serve() as served:
        answer = served.http.post("/v1/completions", json={"prompt": "hello"}).json()
        trace = served.http.get(f"/debug/requests/{answer['id']}?format=perfetto").json()
    assert any(event["ph"] == "X" and event["name"] == answer["id"] for event in trace["traceEvents"])


def test_bad_lookups_are_error_objects(served: Any) -> None:
    unknown = served.http.get("/debug/requests/nothing")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "request_not_found")
    assert served.http.get("/debug/requests?limit=0").status_code == 400
    assert served.http.get("/debug/requests/x?format=xml").status_code == 400


def test_they_need_the_key_and_can_be_switched_off(serve: Any) -> None:
    with serve(api_key=("secret",)) as served:
        assert served.http.get("/debug/requests").status_code == 401
    with serve(enable_debug_routes=False) as served:
        assert served.http.get("/debug/requests").status_code == 404
