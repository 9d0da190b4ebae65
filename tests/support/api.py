"""Calls of the HTTP API of a server in a process of its own, as plain JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx

from tests.support.process import ServerProcess
from tests.support.sse import parse_events

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
API_KEY = "end-to-end"
"""Sent with every call here; servers without keys do not look at it."""

ResultT = TypeVar("ResultT")


def post(
    server: ServerProcess, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> httpx.Response:
    headers = {"Authorization": f"Bearer {API_KEY}", **(headers or {})}
    return server.http.post(path, json=body, headers=headers)


def answer(server: ServerProcess, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = post(server, path, body)
    assert response.status_code == 200, response.text
    whole: dict[str, Any] = response.json()
    return whole


def complete(server: ServerProcess, prompt: Any, **fields: Any) -> dict[str, Any]:
    """A whole greedy answer, with the ids of its tokens."""
    return answer(
        server, COMPLETIONS, {"prompt": prompt, "temperature": 0, "return_token_ids": True, **fields}
    )


def token_ids(server: ServerProcess, prompt: Any, **fields: Any) -> list[int]:
    """The tokens of a single choice."""
    (choice,) = complete(server, prompt, **fields)["choices"]
    ids: list[int] = choice["token_ids"]
    return ids


def stream(server: ServerProcess, path: str, body: dict[str, Any]) -> list[Any]:
    """Every event of a streamed answer."""
    return parse_events(post(server, path, {**body, "stream": True}).content)


def stream_complete(server: ServerProcess, prompt: Any, **fields: Any) -> list[Any]:
    body = {"prompt": prompt, "temperature": 0, "return_token_ids": True, **fields}
    return stream(server, COMPLETIONS, body)


def joined_token_ids(events: Sequence[Any], index: int = 0) -> list[int]:
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return [token_id for choice in choices for token_id in choice.get("token_ids", [])]


def tokenize(server: ServerProcess, **body: Any) -> list[int]:
    ids: list[int] = answer(server, "/tokenize", body)["tokens"]
    return ids


def detokenize(server: ServerProcess, ids: Sequence[int]) -> str:
    text: str = answer(server, "/detokenize", {"tokens": list(ids)})["prompt"]
    return text


def at_once(calls: Sequence[Callable[[], ResultT]]) -> list[ResultT]:
    """Make all calls at the same time; their results in order."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        return [future.result() for future in futures]
