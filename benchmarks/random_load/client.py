"""Requests over HTTP as the load generator's connections send them, and what came back of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from loadgen.client import ConnectionPool, Exchange, Server
from loadgen.client.sse import split_events

COMPLETIONS = "/v1/completions"
TIMEOUT_S = 600.0


@dataclass(slots=True)
class ChoiceResult:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # of each token, if they were asked for
    finish_reason: str | None = None

    def add(self, choice: dict[str, Any]) -> None:
        """Take a whole choice, or the next chunk of one."""
        self.token_ids += choice["token_ids"]
        if choice.get("logprobs"):
            self.logprobs += choice["logprobs"]["token_logprobs"]
        self.finish_reason = choice["finish_reason"] or self.finish_reason


@dataclass(slots=True)
class Answer:
    """`failure` tells why there is no whole answer; "aborted" means that this side left."""

    status: int = 0
    failure: str | None = None
    choices: dict[int, ChoiceResult] = field(default_factory=dict)
    usage: dict[str, int] = field(default_factory=dict)


class Client:
    """All requests of a run, on one event loop."""

    def __init__(self, base_url: str) -> None:
        self._server = Server.resolve(base_url)
        self._pool = ConnectionPool(self._server)

    async def close(self) -> None:
        await self._pool.close()

    async def complete(self, body: dict[str, Any], leave_after_s: float | None = None) -> Answer:
        """Ask for a completion with the ids of its tokens; `leave_after_s` disconnects then."""
        body = {**body, "return_token_ids": True}
        if body.get("stream"):
            body["stream_options"] = {"include_usage": True}
        request = self._server.request("POST", COMPLETIONS, [orjson.dumps(body)])
        exchange = await self._pool.fetch(request, leave_after_s or TIMEOUT_S)
        if exchange.failure is not None:
            aborted = exchange.failure == "timeout" and leave_after_s is not None
            reason = "aborted" if aborted else f"{exchange.failure}: {exchange.detail}"
            return Answer(exchange.response.status, reason)
        return _read(exchange, bool(body.get("stream")))

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        """Any other request. Raises RuntimeError for an answer that is not 200."""
        content = [] if body is None else [orjson.dumps(body)]
        exchange = await self._pool.fetch(self._server.request(method, path, content), TIMEOUT_S)
        if exchange.failure is not None or exchange.response.status != 200:
            reason = exchange.failure or f"{exchange.response.status} {exchange.body()[:300]!r}"
            raise RuntimeError(f"{method} {path}: {reason}")
        return exchange.body()


def _read(exchange: Exchange, streamed: bool) -> Answer:
    answer = Answer(exchange.response.status)
    if answer.status != 200:
        answer.failure = exchange.body()[:300].decode(errors="replace")
        return answer
    if not streamed:
        _add(answer, orjson.loads(exchange.body()))
        return answer
    events = [data for data, _ in split_events(exchange.body())]
    if events[-1:] != [b"[DONE]"]:
        answer.failure = "the stream has no [DONE]"
    for data in events:
        if data != b"[DONE]":
            _add(answer, orjson.loads(data))
    return answer


def _add(answer: Answer, part: dict[str, Any]) -> None:
    if "error" in part:
        answer.failure = str(part["error"])[:300]
        return
    for choice in part["choices"]:
        answer.choices.setdefault(choice["index"], ChoiceResult()).add(choice)
    answer.usage = part.get("usage") or answer.usage
