"""GET /health, /ping, /version and /load."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.routes.generate import json_response
from server.state import ServerState

router = APIRouter(tags=["operations"])


@router.get("/health")
@router.api_route("/ping", methods=["GET", "POST"], include_in_schema=False)
async def health(request: Request) -> Response:
    """200 if requests are taken and the engine steps; else 503 and the reason."""
    engine_health = ServerState.of(request).engine.health()
    status = "ok" if engine_health.healthy else "unavailable"
    response = json_response({"status": status, "reason": engine_health.reason})
    response.status_code = 200 if engine_health.healthy else 503
    return response


@router.get("/version")
async def get_version(request: Request) -> Response:
    """The server's version and the model that it serves."""
    return json_response({"version": version("octavo"), "model": ServerState.of(request).model_names[0]})


@router.get("/load")
async def load(request: Request) -> Response:
    """Open requests and what the engine makes of them, for load balancers."""
    state = ServerState.of(request)
    stats = state.engine.stats()
    return json_response(
        {
            "server_load": state.delivery.num_open,
            "running": stats.num_running,
            "waiting": stats.num_waiting,
            "kv_usage": stats.kv_usage,
        }
    )
