"""The HTTP application: routes, error shapes and what wraps every request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from engine.handle import EngineHandle
from engine.version import __version__
from server.config import ServerConfig
from server.delivery.delivery import Delivery
from server.errors import install_error_handlers
from server.http.auth import AuthMiddleware
from server.http.middleware import InternalErrorMiddleware, RequestContextMiddleware
from server.monitoring.live import LiveHistory
from server.protocol.openapi import install_openapi
from server.routes.admin import add_admin_routes
from server.routes.chat import add_chat_route
from server.routes.completions import add_completion_route
from server.routes.debug import add_debug_routes
from server.routes.embeddings import add_embeddings_route
from server.routes.health import add_health_routes, add_load_route, add_version_route
from server.routes.metrics import add_metrics_route
from server.routes.models import add_model_routes
from server.routes.pages import add_page_routes
from server.routes.responses import add_responses_route
from server.routes.tokenize import add_token_routes
from server.state import ServerState
from server.text_bundle import TextBundle

LOCAL_ORIGINS = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"


def create_app(engine: EngineHandle, text: TextBundle, config: ServerConfig) -> FastAPI:
    """The ASGI application. Its lifespan must run: there it subscribes to the engine, on the serving loop.

    The engine is used, never started or stopped. `app.state.server` is the `ServerState`.
    """
    state = ServerState(engine, text, config)
    live = LiveHistory(engine)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state.start(Delivery(engine, asyncio.get_running_loop()))
        sampling = asyncio.create_task(live.keep())
        yield
        sampling.cancel()
        state.executor.shutdown(wait=False, cancel_futures=True)
        state.grammars.close()

    app = FastAPI(
        title="Octavo",
        version=__version__,
        redirect_slashes=False,  # clients lose the body of a redirected POST
        docs_url=None if config.disable_docs else "/docs",
        redoc_url=None,
        openapi_url=None if config.disable_docs else "/openapi.json",
        lifespan=lifespan,
    )
    app.state.server = state
    install_error_handlers(app)
    open_endpoints = _add_routes(app, state, live)
    install_openapi(app, open_endpoints if config.api_key else None)
    _wrap(app, state, open_endpoints)
    return app


def _add_routes(app: FastAPI, state: ServerState, live: LiveHistory) -> set[Callable[..., Any]]:
    """Returns the endpoints that need no key.

    Routes are added to the app itself, not through routers, so that `AuthMiddleware` sees every endpoint.
    """
    config = state.config
    add_completion_route(app, state)
    add_chat_route(app, state)
    add_responses_route(app, state)
    add_embeddings_route(app, state)
    add_model_routes(app, state)
    add_token_routes(app, state)
    add_load_route(app, state)
    open_endpoints: set[Callable[..., Any]] = {add_health_routes(app, state)}
    get_version = add_version_route(app, state)
    get_metrics = add_metrics_route(app, state.engine, config, state.model_names[0], state.error_responses)
    if config.public_metrics:
        open_endpoints |= {get_version, get_metrics}
    if config.enable_debug_routes:
        add_debug_routes(app, state.engine, live)
    if config.enable_admin_routes:
        add_admin_routes(app, state)
    if config.pages:
        open_endpoints |= add_page_routes(app)
    return open_endpoints


def _wrap(app: FastAPI, state: ServerState, open_endpoints: set[Callable[..., Any]]) -> None:
    """From the inside out: whatever is added later sees the request earlier.

    CORS is outside of the key check, so that preflights need no key and a browser can read a 401.
    """
    config = state.config
    if config.api_key:
        app.add_middleware(AuthMiddleware, router=app, keys=config.api_key, open_endpoints=open_endpoints)
    app.add_middleware(InternalErrorMiddleware)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=config.allowed_origins,
        allow_origin_regex=None if config.allowed_origins else LOCAL_ORIGINS,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["x-request-id"],
    )
    app.add_middleware(
        RequestContextMiddleware, error_responses=state.error_responses, root_path=config.root_path
    )
