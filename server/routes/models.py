"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.responses import Response

from server.protocol.answers import ModelCard, ModelList
from server.protocol.openapi import answers
from server.routes.json_response import json_response
from server.state import ServerState


def add_model_routes(app: FastAPI, state: ServerState) -> None:
    @app.get("/v1/models", tags=["models"], responses=answers(ModelList))
    @app.get("/v1/models/", include_in_schema=False)
    async def list_models() -> Response:
        """All names under which the model is served."""
        cards = [_model_card(state, name) for name in state.model_names]
        return json_response({"object": "list", "data": cards})

    @app.get("/v1/models/{model_id:path}", tags=["models"], responses=answers(ModelCard, 404))
    async def get_model(model_id: str) -> Response:
        """One model; its id may contain slashes."""
        return json_response(_model_card(state, state.resolve_model(model_id)))


def _model_card(state: ServerState, name: str) -> dict[str, Any]:
    """OpenAI's fields, and what a client has to know before it sends a prompt."""
    return {
        "id": name,
        "object": "model",
        "created": state.started,
        "owned_by": "octavo",
        "root": state.model_names[0],
        "parent": None,
        "max_model_len": state.engine.max_model_len,
        "default_sampling_params": {"temperature": 1.0, "top_p": 1.0, **state.text.sampling_defaults},
    }
