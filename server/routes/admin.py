"""What an operator may do to a running server: POST /reset_prefix_cache and POST /abort_request."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI, Request
from starlette.responses import Response

from server.errors import APIError, invalid
from server.http.body import read_body
from server.protocol.admin import AbortRequest
from server.protocol.answers import AbortedAnswer, ForgottenAnswer
from server.protocol.openapi import BODY_ERRORS, answers, json_body
from server.routes.json_response import json_response
from server.state import ServerState

ENGINE_REPLY_S = 30.0
"""An engine that takes longer to come to its inbox is stuck in a step, or has ended."""


def add_admin_routes(app: FastAPI, state: ServerState) -> None:
    @app.post("/reset_prefix_cache", tags=["operations"], responses=answers(ForgottenAnswer, 503))
    @app.post("/flush_cache", include_in_schema=False)
    async def reset_prefix_cache() -> Response:
        """Forget every cached prefix, so that the next measurement starts cold. Running requests go on."""
        forgotten = asyncio.wrap_future(state.engine.forget_prefixes())
        try:
            num_blocks = await asyncio.wait_for(forgotten, ENGINE_REPLY_S)
        except TimeoutError:
            reason = state.engine.health().reason
            raise APIError(503, f"the engine does not answer: {reason}", code="engine_stalled") from None
        return json_response({"blocks_forgotten": num_blocks})

    @app.post(
        "/abort_request",
        tags=["operations"],
        openapi_extra=json_body(AbortRequest),
        responses=answers(AbortedAnswer, *BODY_ERRORS),
    )
    async def abort_request(request: Request) -> Response:
        """End a running answer by its id, or all of them; tells which were really running."""
        body = await read_body(request, AbortRequest, state.config)
        if body.request_id is None and not body.abort_all:
            raise invalid("request_id", "request_id or abort_all is required", "missing_required_parameter")
        gone = APIError(
            503, "aborted by the operator", code="request_aborted", headers={"x-should-retry": "false"}
        )
        aborted = state.delivery.abort(None if body.abort_all else body.request_id, gone)
        if not aborted and not body.abort_all:
            message = "no request with this id is running; the id is that of its answer"
            raise APIError(404, message, code="request_not_found", param="request_id")
        return json_response({"aborted": sorted(aborted)})
