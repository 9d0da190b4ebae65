"""Before time 0: the model's name and limits, an empty cache, warm-up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from loadgen.client import ConnectionPool, Server
from loadgen.client.measure import measure
from loadgen.run.requests import RequestFactory
from loadgen.schedule import ScheduledRequest

PREFLIGHT_TIMEOUT_S = 10.0
WARM_UP_AT_ONCE = 8
WARM_UP_COPY = -1  # prompts of a copy of the trace that is never sent, so they warm no prefix


class ServerUnusableError(RuntimeError):
    """The server cannot be measured; the message says what it did."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    max_model_len: int | None = None  # None if the server does not say
    card: dict[str, Any] = field(default_factory=dict)  # as listed by the server


async def served_model(pool: ConnectionPool, server: Server, name: str | None) -> ServedModel:
    """Ask /v1/models for the model `name`, or the first if None. Raises ServerUnusableError."""
    exchange = await pool.fetch(server.request("GET", "/v1/models"), PREFLIGHT_TIMEOUT_S)
    if exchange.failure == "connect_refused":
        raise ServerUnusableError("connect_refused: no server listens there; --base-url names another place")
    if exchange.failure is not None:
        raise ServerUnusableError(f"GET /v1/models: {exchange.failure}: {exchange.detail}")
    try:
        cards = {card["id"]: card for card in orjson.loads(exchange.body())["data"]}
    except (orjson.JSONDecodeError, KeyError, TypeError):
        cards = {}
    if exchange.response.status != 200 or not cards:
        if name is not None:  # some servers have no such list; the requests will show whether this one works
            return ServedModel(name)
        raise ServerUnusableError(
            f"GET /v1/models: status {exchange.response.status}, no model listed; name one with --model"
        )
    if name is None:
        name = next(iter(cards))
    if name not in cards:
        raise ServerUnusableError(f"model {name!r} is not served; there are {', '.join(cards)}")
    limit = cards[name].get("max_model_len")
    return ServedModel(name, limit if isinstance(limit, int) else None, cards[name])


async def flush_cache(pool: ConnectionPool, server: Server, path: str) -> None:
    """Raises ServerUnusableError unless the server agrees."""
    path = "/" + path.removeprefix("/")
    exchange = await pool.fetch(server.request("POST", path, [b"{}"]), PREFLIGHT_TIMEOUT_S)
    if exchange.failure is not None or not 200 <= exchange.response.status < 300:
        raise ServerUnusableError(f"POST {path}: {exchange.failure or exchange.response.status}")


async def warm_up(
    pool: ConnectionPool, factory: RequestFactory, like: Sequence[ScheduledRequest], timeout_s: float
) -> None:
    """Send prompts of the same lengths that share nothing with the run. Raises ServerUnusableError."""
    gate = asyncio.Semaphore(WARM_UP_AT_ONCE)

    async def send(number: int, model_request: ScheduledRequest) -> None:
        request = ScheduledRequest(
            index=number,
            intended_ns=0,
            input_tokens=model_request.input_tokens,
            output_tokens=model_request.output_tokens,
            trace_row=number,
            copy=WARM_UP_COPY,
        )
        prepared = factory.prepare(request)
        async with gate:
            exchange = await pool.fetch(prepared.payload, timeout_s)
        result = measure(request, prepared.request_id, exchange, 0)
        if not result.ok:
            raise ServerUnusableError(f"warm-up request {number}: {result.failure}: {result.detail}")

    await asyncio.gather(*(send(number, request) for number, request in enumerate(like)))
