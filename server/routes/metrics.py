"""GET /metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from fastapi import FastAPI, Request
from prometheus_client.exposition import choose_encoder
from starlette.responses import PlainTextResponse, Response

from engine.handle import EngineHandle
from server.config import ServerConfig
from server.monitoring.metrics import EngineCollector, metrics_registry


def add_metrics_route(
    app: FastAPI,
    engine: EngineHandle,
    config: ServerConfig,
    model_name: str,
    error_responses: Counter[int],
) -> Callable[..., Response]:
    """Serve the text format that the scraper asks for, with a trailing slash and without; never a redirect.

    `error_responses` counts responses by their HTTP status. Returns the endpoint, for the list of those that
    need no key. It is no coroutine, so that writing a few hundred lines happens beside the event loop.
    """
    collector = EngineCollector(engine, config.metrics_prefix, model_name, error_responses)
    registry = metrics_registry(collector)

    @app.get("/metrics", tags=["operations"], response_class=PlainTextResponse)
    @app.get("/metrics/", include_in_schema=False)
    def metrics(request: Request) -> Response:
        """Prometheus metrics."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    return metrics
