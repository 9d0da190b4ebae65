"""GET /health, /ping, /version and /load."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.responses import Response

from engine.version import __version__
from server.protocol.answers import HealthAnswer, LoadAnswer, VersionAnswer
from server.protocol.openapi import answers
from server.routes.json_response import json_response
from server.state import ServerState

SOURCE_ROOT = Path(__file__).parents[2]


def add_health_routes(app: FastAPI, state: ServerState) -> Callable[..., Any]:
    """Returns the endpoint, for the list of those that need no key."""

    @app.get(
        "/health",
        tags=["operations"],
        responses=answers(HealthAnswer) | {503: {"description": "Unavailable", "model": HealthAnswer}},
    )
    @app.api_route("/ping", methods=["GET", "POST"], include_in_schema=False)
    async def health() -> Response:
        """200 if requests are taken and the engine steps; else 503 and the reason."""
        engine_health = state.engine.health()
        status = "ok" if engine_health.healthy else "unavailable"
        content = {"status": status, "reason": engine_health.reason}
        return json_response(content, 200 if engine_health.healthy else 503)

    return health


def add_version_route(app: FastAPI, state: ServerState) -> Callable[..., Any]:
    """Returns the endpoint, for the list of those that may need no key."""

    @app.get("/version", tags=["operations"], responses=answers(VersionAnswer))
    def get_version() -> Response:  # in a thread: the first time, it asks git
        """The server's version, the model that it serves, and the git revision if there is one."""
        return json_response(
            {"version": __version__, "model": state.model_names[0], "git": _source_revision()}
        )

    return get_version


def add_load_route(app: FastAPI, state: ServerState) -> None:
    @app.get("/load", tags=["operations"], responses=answers(LoadAnswer))
    async def load() -> Response:
        """Open requests and what the engine makes of them, for load balancers."""
        stats = state.engine.stats()
        return json_response(
            {
                "server_load": state.delivery.num_open,
                "running": stats.num_running,
                "waiting": stats.num_waiting,
                "kv_usage": stats.kv_usage,
            }
        )


@cache
def _source_revision() -> str | None:
    """The commit of the source tree, with `-dirty` if files were changed; None for an installed package."""
    if not (SOURCE_ROOT / ".git").exists():  # else a repository around it would answer
        return None
    command = ["git", "-C", str(SOURCE_ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
