"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.openapi import json_body
from server.prepare import prepare_chat
from server.protocol.chat import ChatRequest
from server.routes.generate import generate

router = APIRouter(tags=["generation"])


@router.post("/v1/chat/completions", openapi_extra=json_body(ChatRequest))
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation, streamed with `stream: true`."""
    return await generate(request, ChatRequest, prepare_chat)
