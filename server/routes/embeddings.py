"""POST /v1/embeddings: refused in words, so that nobody searches for a typo in the address."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.responses import Response

from server.errors import APIError
from server.protocol.openapi import refusal
from server.state import ServerState


def add_embeddings_route(app: FastAPI, state: ServerState) -> None:
    @app.post("/v1/embeddings", tags=["generation"], status_code=404, responses=refusal(404))
    async def create_embedding() -> Response:
        """Always 404: the models that Octavo serves generate text."""
        message = f"{state.model_names[0]} generates text; it makes no embeddings"
        raise APIError(404, message, code="model_not_found", param="model")
