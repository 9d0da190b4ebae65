"""What holds for every route: ids, content types, sizes, CORS, health, load."""

from __future__ import annotations

import gzip
import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.version import __version__

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
JSON_TYPE = {"Content-Type": "application/json"}


@pytest.mark.parametrize("given", ["abc-1.2:3_4", "x" * 128])
def test_plain_request_ids_come_back(served: Any, given: str) -> None:
    answer = served.http.get("/health", headers={"X-Request-Id": given})
    assert answer.headers["x-request-id"] == given


@pytest.mark.parametrize("given", [None, "", "x" * 129, "y" * 30_000, "a b", "a/b", "h\u00e9", "<x>"])
def test_odd_request_ids_are_replaced(served: Any, given: str | None) -> None:
    headers = {} if given is None else {"X-Request-Id": given.encode()}
    answer = served.http.get("/health", headers=headers)
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


@pytest.mark.parametrize("name", ["request_id", "rid"])
def test_a_body_may_bring_the_request_id(served: Any, name: str) -> None:
    def id_of(given: str, **headers: str) -> str:
        answer = served.http.post(COMPLETIONS, json={"prompt": "x", name: given}, headers=headers)
        assert answer.status_code == 200
        return str(answer.headers["x-request-id"])

    assert id_of("mine-1") == "mine-1"
    assert id_of("mine-1", **{"X-Request-Id": "header"}) == "header"
    assert re.fullmatch("[0-9a-f]{32}", id_of("no good"))


def test_request_id_is_never_a_key(served: Any) -> None:
    """Two live streams with one id stay apart, and the id is in no chunk."""
    headers = {"X-Request-Id": "same"}
    body = {"stream": True, "max_tokens": 100}
    with (
        served.http.stream("POST", COMPLETIONS, json={"prompt": "first", **body}, headers=headers) as one,
        served.http.stream("POST", COMPLETIONS, json={"prompt": "second", **body}, headers=headers) as two,
    ):
        raw = [one.read(), two.read()]
    assert b"same" not in b"".join(raw)
    ids = {re.search(rb'"id":"(.*?)"', r).group(1) for r in raw}  # type: ignore[union-attr]
    assert len(ids) == 2
    assert served.engine.submitted[-1].request_id != served.engine.submitted[-2].request_id


def test_errors_carry_the_request_id(served: Any) -> None:
    for answer in (served.http.get("/nope"), served.http.post(COMPLETIONS, json={})):
        assert answer.status_code in (400, 404)
        assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/json"]
)
def test_json_content_types(served: Any, content_type: str) -> None:
    answer = served.http.post(COMPLETIONS, content=b'{"prompt": "a"}', headers={"Content-Type": content_type})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "content_type", ["application/x-www-form-urlencoded", "text/plain", "application/jsonx", None]
)
def test_other_content_types(served: Any, content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    answer = served.http.post(COMPLETIONS, content=b'{"prompt": "a"}', headers=headers)
    assert answer.status_code == 415 and answer.json()["error"]["code"] == "unsupported_media_type"
    assert "Content-Type: application/json" in answer.json()["error"]["message"]


def test_a_packed_body_is_named_as_the_fault(served: Any) -> None:
    packed = gzip.compress(b'{"prompt": "a"}')
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = served.http.post(COMPLETIONS, content=packed, headers=headers)
    assert answer.status_code == 415
    assert "Content-Encoding" in answer.json()["error"]["message"]


def test_body_limit(serve: Any) -> None:
    with serve(max_request_bytes=1000) as served:
        body = b'{"prompt": "' + b"x" * 5000 + b'"}'
        exact = b'{"prompt": "a"' + b" " * 985 + b"}"
        assert len(exact) == 1000

        def chunks() -> Iterator[bytes]:
            for start in range(0, len(body), 100):
                yield body[start : start + 100]

        for content in (body, chunks(), b"{" + b" " * 1000):
            answer = served.http.post(COMPLETIONS, content=content, headers=JSON_TYPE)
            assert answer.status_code == 413
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
            assert answer.json()["error"]["code"] == "request_too_large"
        assert served.http.post(COMPLETIONS, content=exact, headers=JSON_TYPE).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":[%s5]}' % (b"5," * 4_000_001),
        b'{"prompt":"x",%s"end":1}' % b"".join(b'"k%d" : 1,' % i for i in range(300_001)),
        b'{"prompt":"x","extra":[%s[]]}' % (b"[]," * 300_001),
    ],
    ids=["values", "members", "arrays"],
)
def test_a_body_of_too_many_values_is_refused_unparsed(served: Any, body: bytes) -> None:
    """Parsing any of these would hold up everybody for a second or more."""
    answer = served.http.post(COMPLETIONS, content=body, headers=JSON_TYPE)
    assert answer.status_code == 413 and "more than" in answer.json()["error"]["message"]


def test_preflight_needs_no_key_and_401_can_be_read(serve: Any) -> None:
    origin = "https://app.example"
    preflight = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    with serve(api_key=("k",), allowed_origins=(origin,)) as served:
        answer = served.http.options(CHAT, headers=preflight)
        assert answer.status_code in (200, 204)
        assert answer.headers["access-control-allow-origin"] == origin
        assert "authorization" in answer.headers["access-control-allow-headers"].lower()
        assert "access-control-allow-credentials" not in answer.headers
        answer = served.http.post(CHAT, json={}, headers={"Origin": origin})
        assert answer.status_code == 401
        assert answer.headers["access-control-allow-origin"] == origin
        assert (
            "access-control-allow-origin"
            not in served.http.get("/health", headers={"Origin": "https://x"}).headers
        )


def test_only_local_origins_by_default(served: Any) -> None:
    for origin, allowed in (
        ("http://localhost:3000", True), ("https://127.0.0.1", True), ("http://[::1]:8080", True),
        ("https://app.example", False), ("http://localhost.evil.example", False), ("null", False),
    ):  # fmt: skip
        headers = served.http.get("/health", headers={"Origin": origin}).headers
        assert ("access-control-allow-origin" in headers) == allowed, origin


def test_unforeseen_errors_are_500_objects_not_to_be_retried(serve: Any, monkeypatch: Any) -> None:
    def explode(*_: Any) -> None:
        raise RuntimeError("secret detail")

    with serve() as served:
        monkeypatch.setattr(served.engine, "submit", explode)
        answer = served.http.post(
            COMPLETIONS, json={"prompt": "a"}, headers={"X-Request-Id": "r1", "Origin": "http://localhost"}
        )
        assert answer.status_code == 500
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "internal_error")
        assert "r1" in error["message"] and "secret" not in answer.text
        assert answer.headers["x-should-retry"] == "false"
        assert answer.headers["access-control-allow-origin"] == "http://localhost"
        monkeypatch.undo()
        assert served.http.post(COMPLETIONS, json={"prompt": "a"}).status_code == 200


def test_full_queue(serve: Any) -> None:
    with serve(engine={"max_queue": 3}) as served:
        served.engine.paused.set()
        with served.http.stream("POST", COMPLETIONS, json={"prompt": ["a", "b"], "n": 2, "stream": True}):
            assert served.engine.num_running == 4
            answer = served.http.post(COMPLETIONS, json={"prompt": "a", "stream": True})
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")


def test_prompt_list_that_fits_the_queue_only_in_part_leaves_nothing_behind(serve: Any) -> None:
    with serve(engine={"max_queue": 3}) as served:
        served.engine.paused.set()
        with served.http.stream("POST", COMPLETIONS, json={"prompt": ["a", "b"], "stream": True}):
            answer = served.http.post(COMPLETIONS, json={"prompt": ["a", "b", "c"]})
            assert answer.status_code == 429
            assert served.engine.num_running == 2
            assert served.http.get("/load").json()["server_load"] == 1
        answer = served.http.post(COMPLETIONS, json={"prompt": ["a", "b", "c", "d"]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


def test_health_follows_the_engine(serve: Any) -> None:
    with serve(api_key=("k",)) as served:
        for path in ("/health", "/ping"):
            answer = served.http.get(path)
            assert (answer.status_code, answer.json()) == (200, {"status": "ok", "reason": "ok"})
        assert served.http.post("/ping").status_code == 200
        served.engine.drain()
        answer = served.http.get("/health")
        assert (answer.status_code, answer.json()["reason"]) == (503, "shutting_down")


def test_head_answers_as_get_does_without_a_body(serve: Any) -> None:
    paths = ["/health", "/ping", "/version", "/load", "/v1/models", "/v1/models/test-model", "/"]
    with serve(api_key=("k",)) as served:
        assert [served.http.head(path).status_code for path in paths] == [200, 200, *[401] * 4, 200]
        served.http.headers["Authorization"] = "Bearer k"
        for path in [*paths, "/metrics", "/openapi.json", "/nowhere", "/v1/models/nope", COMPLETIONS]:
            answer, head = served.http.get(path), served.http.head(path)
            assert (head.status_code, head.content) == (answer.status_code, b""), path
            assert head.headers.keys() == answer.headers.keys()
            assert head.headers["content-type"] == answer.headers["content-type"]
        served.engine.drain()
        assert served.http.head("/health").status_code == 503


def test_draining_refuses_new_requests_and_lets_old_ones_end(serve: Any) -> None:
    with serve() as served:
        served.engine.paused.set()
        with served.http.stream("POST", COMPLETIONS, json={"prompt": "abc", "stream": True}) as answer:
            served.engine.drain()
            refused = served.http.post(COMPLETIONS, json={"prompt": "abc"})
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "shutting_down"
            assert "retry-after" in refused.headers
            served.engine.paused.clear()
            assert answer.read().endswith(b"data: [DONE]\n\n")


def test_load_counts_open_requests(served: Any) -> None:
    served.engine.paused.set()
    assert served.http.get("/load").json()["server_load"] == 0
    with served.http.stream("POST", COMPLETIONS, json={"prompt": "abc", "n": 2, "stream": True}):
        load = served.http.get("/load").json()
        assert load == {"server_load": 1, "running": 2, "waiting": 0, "kv_usage": 0.02}
        served.engine.paused.clear()


def test_models(served: Any) -> None:
    for path in ("/v1/models", "/v1/models/"):
        cards = served.http.get(path).json()
        assert cards["object"] == "list"
        assert [card["id"] for card in cards["data"]] == ["test-model", "org/alias"]
    assert served.http.get("/v1/models/org/alias").json() == cards["data"][1]
    assert cards["data"][0]["max_model_len"] == 512
    answer = served.http.get("/v1/models/nope")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_version(served: Any) -> None:
    version = served.http.get("/version").json()
    assert version["model"] == "test-model" and version["version"] == __version__
    is_checkout = (Path(__file__).parents[3] / ".git").exists()
    assert bool(version["git"]) == (is_checkout and shutil.which("git") is not None)


def test_tokenize_and_back(served: Any) -> None:
    text = "h\u00e9llo \U0001fae0"
    answer = served.http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
    assert answer["count"] == len(answer["tokens"]) == len(text.encode())
    assert answer["token_strs"] is None
    assert served.http.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": text}
    assert served.http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
    listed = served.http.post("/tokenize", json={"prompt": ["a", "bc"], "return_token_strs": True}).json()
    assert listed["count"] == [2, 3]
    assert listed["token_strs"] == [["<s>", "a"], ["<s>", "b", "c"]]


def test_tokenize_gives_what_a_chat_is_fed(served: Any) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tokens = served.http.post("/tokenize", json={"messages": messages}).json()["tokens"]
    served.http.post(CHAT, json={"messages": messages})
    assert served.engine.submitted[-1].prompt_token_ids.tolist() == tokens
    assert tokens.count(256) == 1, "one BOS"


def test_docs_describe_the_bodies(serve: Any) -> None:
    with serve() as served:
        schema = served.http.get("/openapi.json").json()
        body = schema["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body["$ref"].rpartition("/")[2] in schema["components"]["schemas"]
        assert "top_logprobs" in schema["components"]["schemas"]["ChatRequest"]["properties"]
        assert served.http.get("/docs").status_code == 200
    with serve(disable_docs=True) as served:
        assert served.http.get("/docs").status_code == served.http.get("/openapi.json").status_code == 404


def test_a_huge_prompt_does_not_hold_up_others(served: Any) -> None:
    """Not a timing test: health answers while it is worked on, and it is refused by its size alone."""
    answers: list[httpx.Response] = []
    body = {"prompt": "word " * 1_600_000}
    thread = threading.Thread(target=lambda: answers.append(served.http.post(COMPLETIONS, json=body)))
    thread.start()
    checks = 0
    while thread.is_alive():
        assert served.http.get("/health").status_code == 200
        checks += 1
        time.sleep(0.01)
    assert checks > 0
    assert answers[0].json()["error"]["code"] == "context_length_exceeded"
