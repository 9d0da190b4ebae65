"""Without a key only the documented routes answer, however the path is written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from server.app import create_app
from server.config import ServerConfig
from tests.support.byte_text import byte_text_bundle
from tests.support.fake_engine import FakeEngine

KEYS = ("first-key", "second-k\u00e9y")
OPEN = {"/health", "/ping", "/", "/dashboard", "/pages/p"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Any]:
    text = byte_text_bundle()
    engine = FakeEngine(lambda request, index: [0], text.tokenizer.vocab_size)
    yield create_app(engine, text, ServerConfig(api_key=KEYS, enable_admin_routes=True))
    engine.shutdown()


def call(app: Any, method: str, path: str, **headers: str | bytes) -> httpx.Response:
    """One call in this process; `raw_path` keeps the path as it is written."""

    async def request() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            return await http.request(method, path, headers=headers)  # type: ignore[arg-type]

    return asyncio.run(request())


def routes_of(app: Any) -> list[tuple[str, str]]:
    """Every method and path that the application answers, with something in the place of parameters."""
    found = []
    for route in app.routes:
        assert isinstance(route, Route), "the middleware must see every endpoint"
        path = route.path.replace("{model_id:path}", "m").replace("{request_id}", "r").replace("{name}", "p")
        found.extend((method, path) for method in sorted(route.methods or {"GET"}))
    return found


def test_every_route_but_the_open_ones_needs_a_key(guarded: Any) -> None:
    routes = routes_of(guarded)
    paths = {path for _, path in routes}
    assert {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/tokenize",
        "/reset_prefix_cache",
        "/metrics",
        "/docs",
        "/openapi.json",
    } <= paths
    for method, path in routes:
        status = call(guarded, method, path).status_code
        assert (status == 401) == (path not in OPEN), (method, path, status)


def test_the_error_is_an_object(guarded: Any) -> None:
    answer = call(guarded, "GET", "/v1/models")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == (
        "invalid_request_error",
        "invalid_api_key",
        None,
    )


@pytest.mark.parametrize(
    "path",
    ["//v1/models", "/V1/models", "/v1/../v1/models", "/v1%2fmodels", "/v1/models/", "/health/../v1/models",
     "/health/", "/healthx", "/%68ealth/x", "/nope", "/ping/v1/models", "/health%2f..%2fv1%2fmodels"],
)  # fmt: skip
def test_spellings_do_not_open_doors(guarded: Any, path: str) -> None:
    assert call(guarded, "GET", path).status_code == 401


@pytest.mark.parametrize("method", ["POST", "DELETE", "OPTIONS"])
def test_other_methods_of_an_open_route_are_not_open(guarded: Any, method: str) -> None:
    assert call(guarded, method, "/health").status_code == 401


@pytest.mark.parametrize(
    ("header", "value", "accepted"),
    [
        ("Authorization", "Bearer first-key", True),
        ("Authorization", "bearer first-key", True),
        ("Authorization", "BEARER  first-key ", True),
        ("Authorization", "Bearer second-k\u00e9y", True),
        ("x-api-key", "first-key", True),
        ("api-key", "first-key", True),
        ("Authorization", "first-key", False),
        ("Authorization", "Basic first-key", False),
        ("Authorization", "Bearer", False),
        ("Authorization", "Bearer ", False),
        ("Authorization", "Bearer first-ke", False),
        ("Authorization", "Bearer first-keyy", False),
        ("Authorization", "Bearer first-key,second-key", False),
        ("x-api-key", "", False),
    ],
)
def test_keys(guarded: Any, header: str, value: str, accepted: bool) -> None:
    status = call(guarded, "GET", "/v1/models", **{header: value.encode()}).status_code
    assert status == (200 if accepted else 401)


def test_open_without_keys_in_the_configuration(served: Any) -> None:
    assert served.http.get("/v1/models").status_code == 200


def test_public_metrics_and_root_path() -> None:
    text = byte_text_bundle()
    engine = FakeEngine(lambda request, index: [0], text.tokenizer.vocab_size)
    config = ServerConfig(api_key=KEYS, public_metrics=True, root_path="/proxy")
    app = create_app(engine, text, config)
    for path, status in (
        ("/metrics", 200), ("/metrics/", 200), ("/version", 200), ("/proxy/health", 200),
        ("/proxy/version", 200), ("/proxy/v1/models", 401), ("/proxy/load", 401),
    ):  # fmt: skip
        assert call(app, "GET", path).status_code == status, path
    engine.shutdown()
