"""Bearer keys on every route but a few: denied unless the endpoint that would answer is on the open list."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import APIError

KEY_HEADERS = ("api-key", "x-api-key")


class AuthMiddleware:
    """Compares the key in constant time, before routing.

    The open endpoints are recognized by asking the router which endpoint would answer, not by the path's
    spelling, so `//v1/models` or a root path cannot slip past. What matches no route is denied too.
    """

    def __init__(
        self, app: ASGIApp, *, router: Starlette, keys: Iterable[str], open_endpoints: set[Callable[..., Any]]
    ) -> None:
        self.app = app
        self.router = router
        self.key_digests = [_digest(key.encode()) for key in keys]
        self.open_endpoints = open_endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._has_key(Headers(scope=scope)) or self._is_open(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            error = APIError(
                401,
                "missing or wrong API key: send it as 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error.response()(scope, receive, send)

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        offered = [headers[name] for name in KEY_HEADERS if name in headers]
        if scheme.lower() == "bearer":
            offered.append(bearer.strip())
        found = False
        for key in offered:
            digest = _digest(key.encode("latin-1"))  # the bytes as they came
            for key_digest in self.key_digests:
                found |= hmac.compare_digest(digest, key_digest)
        return found

    def _is_open(self, scope: Scope) -> bool:
        for route in self.router.routes:
            match, child_scope = route.matches(scope)
            if match is Match.FULL:
                return child_scope.get("endpoint") in self.open_endpoints
        return False


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
