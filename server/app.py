"""The HTTP application: routes, error shapes and what wraps every request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from engine.handle import EngineHandle
from server.auth import AuthMiddleware
from server.config import ServerConfig
from server.delivery import Delivery
from server.errors import install_error_handlers
from server.middleware import InternalErrorMiddleware, RequestContextMiddleware
from server.openapi import install_openapi
from server.routes import chat, completions, health, models, tokenize
from server.routes.debug import add_debug_routes
from server.routes.metrics import add_metrics_route
from server.state import ServerState
from server.text_bundle import TextBundle

LOCAL_ORIGINS = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"


def create_app(engine: EngineHandle, text: TextBundle, config: ServerConfig) -> FastAPI:
    """The ASGI application. Its lifespan must run: there it subscribes to the engine, on the serving loop.

    The engine is used, never started or stopped. `app.state.server` is the `ServerState`.
    """
    state = ServerState(engine, text, config)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state.start(Delivery(engine, asyncio.get_running_loop()))
        yield
        state.executor.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(
        title="Octavo",
        version=version("octavo"),
        root_path=config.root_path,
        redirect_slashes=False,  # clients lose the body of a redirected POST
        docs_url=None if config.disable_docs else "/docs",
        redoc_url=None,
        openapi_url=None if config.disable_docs else "/openapi.json",
        lifespan=lifespan,
    )
    app.state.server = state
    install_openapi(app)
    install_error_handlers(app)
    for routes in (completions, chat, models, tokenize, health):
        app.include_router(routes.router)
    error_responses: Counter[int] = Counter()
    metrics = add_metrics_route(app, engine, config, state.model_names[0], error_responses)
    if config.enable_debug_routes:
        add_debug_routes(app, engine)
    open_endpoints: set[Callable[..., Any]] = {health.health}
    if config.public_metrics:
        open_endpoints |= {metrics, health.get_version}
    _wrap(app, config, open_endpoints, error_responses)
    return app


def _wrap(
    app: FastAPI,
    config: ServerConfig,
    open_endpoints: set[Callable[..., Any]],
    error_responses: Counter[int],
) -> None:
    """From the inside out: whatever is added later sees the request earlier.

    CORS is outside of the key check, so that preflights need no key and a browser can read a 401.
    """
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
    app.add_middleware(RequestContextMiddleware, error_responses=error_responses)
