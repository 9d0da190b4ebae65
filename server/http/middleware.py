"""What wraps every request: its arrival time, its id, and the last net for errors. Plain ASGI, no tasks."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections import Counter

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import internal_error

logger = logging.getLogger(__name__)

ACCEPTED_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def label_request(request: Request, request_id: str | None) -> None:
    """Take the id that a body brings, if it is fit and the headers bring none."""
    is_free = "x-request-id" not in request.headers
    if is_free and request_id is not None and ACCEPTED_REQUEST_ID.fullmatch(request_id):
        request.state.request_id = request_id


class RequestContextMiddleware:
    """Outermost. Puts `arrived_ns` (monotonic) and `request_id` in the scope's state; answers with the id.

    Counts error responses by their status in `error_responses`. `root_path` is where a proxy serves the
    application; routes match with it and without. What answers GET answers HEAD.

    Whatever wraps `send` looks at the start of a response only. `send_body` in the state is the bare one, for
    streams: at a few hundred of them, those layers would cost as much as the text.

    The id is a label for people: the caller's if it is short and plain, else a new one. It is never a key.
    """

    def __init__(self, app: ASGIApp, *, error_responses: Counter[int], root_path: str) -> None:
        self.app = app
        self.error_responses = error_responses
        self.root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self.root_path:
            scope["root_path"] = self.root_path
        state = scope.setdefault("state", {})
        state["arrived_ns"] = time.monotonic_ns()
        state["send_body"] = send
        request_id = Headers(scope=scope).get("x-request-id", "")
        if not ACCEPTED_REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex
        state["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = state["request_id"]
                if message["status"] >= 400:
                    self.error_responses[message["status"]] += 1
            await send(message)

        if scope["method"] == "HEAD":  # the server, which keeps its own scope, sends no body
            scope = {**scope, "method": "GET"}
        await self.app(scope, receive, send_with_id)


class InternalErrorMiddleware:
    """Turns an unforeseen exception into a 500 error object, inside CORS and the request id."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def noting_start(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, noting_start)
        except ClientDisconnect:  # in the middle of its request: nobody is left to answer
            logger.debug("request %s: the client went away", scope["state"]["request_id"])
        except Exception:
            request_id = scope["state"]["request_id"]
            logger.exception("request %s failed", request_id)
            if started:
                raise
            await internal_error(request_id).response()(scope, receive, send)
