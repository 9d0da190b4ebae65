"""POST /v1/completions."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response

from server.preparation.prepare import prepare_completion
from server.protocol.answers import CompletionAnswer
from server.protocol.completions import CompletionRequest
from server.protocol.openapi import GENERATION_ERRORS, answers, json_body
from server.routes.generate import choices_forms, generate
from server.state import ServerState


def add_completion_route(app: FastAPI, state: ServerState) -> None:
    @app.post(
        "/v1/completions",
        tags=["generation"],
        openapi_extra=json_body(CompletionRequest),
        responses=answers(CompletionAnswer, *GENERATION_ERRORS, streams=True),
    )
    async def create_completion(request: Request) -> Response:
        """Continue one or more prompts, streamed with `stream: true`."""
        return await generate(request, state, CompletionRequest, prepare_completion, choices_forms("prompt"))
