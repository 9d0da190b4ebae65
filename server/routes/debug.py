"""GET /debug/requests: what became of the newest requests, and when; GET /debug/live: what goes on now."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any, Literal

from fastapi import FastAPI, Query
from starlette.responses import Response

from engine.handle import EngineHandle
from engine.record import RequestRecord
from engine.record.perfetto import chrome_trace
from server.errors import APIError
from server.monitoring.live import LiveHistory
from server.protocol.answers import RequestSummary
from server.protocol.openapi import answers
from server.routes.json_response import json_response

MAX_LISTED = 512


def add_debug_routes(app: FastAPI, engine: EngineHandle, live: LiveHistory) -> None:
    @app.get("/debug/requests", tags=["operations"], responses=answers(list[RequestSummary], 400))
    async def list_requests(limit: int = Query(20, ge=1, le=MAX_LISTED)) -> Response:
        """The newest requests, the newest first, without their tokens' times."""
        return json_response([_summary(record) for record in engine.recent_requests.newest(limit)])

    @app.get("/debug/requests/{request_id}", tags=["operations"], responses=answers(dict[str, Any], 400, 404))
    async def show_request(request_id: str, format: Literal["json", "perfetto"] = "json") -> Response:
        """One request's record; `format=perfetto` gives Chrome trace JSON."""
        record = engine.recent_requests.get(request_id)
        if record is None:
            message = f"no request {request_id!r} among the newest; /debug/requests lists them"
            raise APIError(404, message, code="request_not_found", param="request_id")
        return json_response(asdict(record) if format == "json" else chrome_trace([record]))

    @app.get("/debug/live", tags=["operations"], responses=answers(dict[str, Any]))
    def show_live() -> Response:  # no coroutine: a large pool is looked through beside the event loop
        """The live page's data: queues, KV blocks, newest requests, the last minutes' speed and latencies."""
        return json_response(live.snapshot())


def _summary(record: RequestRecord) -> dict[str, Any]:
    """Times stay nanoseconds of the monotonic clock; 0 means that it has not happened."""
    names = [field.name for field in fields(record) if field.name != "token_times_ns"]
    summary = {name: getattr(record, name) for name in names}
    return summary | {"num_generated_tokens": record.num_generated_tokens}
