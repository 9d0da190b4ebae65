"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.routes.generate import json_response
from server.state import ServerState

router = APIRouter(tags=["models"])


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """All names under which the model is served."""
    state = ServerState.of(request)
    cards = [_model_card(state, name) for name in state.model_names]
    return json_response({"object": "list", "data": cards})


@router.get("/v1/models/{model_id:path}")
async def get_model(request: Request, model_id: str) -> Response:
    """One model; its id may contain slashes."""
    state = ServerState.of(request)
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
