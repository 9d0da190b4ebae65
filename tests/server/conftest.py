"""A server over the fake engine, which answers each prompt with the prompt's own text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from server.app import create_app
from server.config import ServerConfig
from tests.support.byte_text import byte_text_bundle
from tests.support.fake_engine import FakeEngine, Script
from tests.support.live_server import live_server

MODEL_NAMES = ("test-model", "org/alias")


@dataclass
class Served:
    url: str
    engine: FakeEngine
    http: httpx.Client


ServedFactory = Callable[..., AbstractContextManager[Served]]


def parrot(tokenizer: Any) -> Script:
    """Answers with the prompt's text, or the last user message's; choice j > 0 ends in `#j`. Then EOS."""

    def script(request: Any, index: int) -> list[int]:
        text = tokenizer.decode(request.prompt_token_ids.tolist())
        if text.endswith("[assistant]"):
            text = text.rpartition("[user]")[2].removesuffix("[assistant]")
        suffix = f"#{index}" if index else ""
        return [*tokenizer.encode(text + suffix, add_special_tokens=False), *tokenizer.eos_token_ids]

    return script


@contextmanager
def _serve(
    script: Script | None = None,
    *,
    engine: dict[str, Any] | None = None,
    send_buffer: int | None = None,
    **config: Any,
) -> Iterator[Served]:
    text = byte_text_bundle()
    tokenizer = text.tokenizer
    fake = FakeEngine(
        script or parrot(tokenizer), tokenizer.vocab_size, frozenset(tokenizer.eos_token_ids), **engine or {}
    )
    app = create_app(fake, text, ServerConfig(**{"served_model_name": MODEL_NAMES, **config}))
    try:
        with live_server(app, send_buffer) as url, httpx.Client(base_url=url, timeout=20) as http:
            yield Served(url, fake, http)
    finally:
        fake.shutdown()


@pytest.fixture(scope="session")
def serve() -> ServedFactory:
    """`with serve(script, engine={...}, flag=...) as served:` for a server of one's own."""
    return _serve


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Served]:
    with _serve() as served:
        yield served


@pytest.fixture
def served(shared_server: Served) -> Iterator[Served]:
    """The shared server; after the test nothing runs and a plain request still works."""
    yield shared_server
    shared_server.engine.paused.clear()
    answer = shared_server.http.post("/v1/completions", json={"prompt": "still here", "max_tokens": 64})
    assert answer.json()["choices"][0]["text"] == "still here"
    assert shared_server.http.get("/health").status_code == 200
    assert shared_server.engine.num_running == 0
