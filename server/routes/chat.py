"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response

from server.preparation.prepare import prepare_chat
from server.protocol.answers import ChatAnswer
from server.protocol.chat import ChatRequest
from server.protocol.openapi import GENERATION_ERRORS, answers, json_body
from server.routes.generate import choices_forms, generate
from server.state import ServerState


def add_chat_route(app: FastAPI, state: ServerState) -> None:
    @app.post(
        "/v1/chat/completions",
        tags=["generation"],
        openapi_extra=json_body(ChatRequest),
        responses=answers(ChatAnswer, *GENERATION_ERRORS, streams=True),
    )
    async def create_chat_completion(request: Request) -> Response:
        """Answer a conversation, streamed with `stream: true`."""
        return await generate(request, state, ChatRequest, prepare_chat, choices_forms("messages"))
