"""A server process with a make-believe engine, for `test_lifecycle.py`: argv holds ServerConfig as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

from engine.handle import EngineHealth, EngineStats
from server.config import ServerConfig
from server.http import lifecycle
from server.http.listen import address_of, bind_socket

lifecycle.ENGINE_STOP_S = 0.5


class ScriptedEngine:
    """Its streams go on until they are told to finish, the engine is shut down, or it dies."""

    def __init__(self) -> None:
        self.reason = "ok"
        self.end_of_streams: str | None = None
        self.num_streams = 0
        self.hangs = False

    def stats(self) -> EngineStats:
        return EngineStats(self.num_streams, 0, 0.0, 1, 0)

    def health(self) -> EngineHealth:
        return EngineHealth(self.reason == "ok", self.reason)

    def drain(self) -> None:
        self.reason = "shutting_down"

    def shutdown(self) -> None:
        self.end_of_streams = self.end_of_streams or "aborted"
        if self.hangs:
            threading.Event().wait()


engine = ScriptedEngine()


async def stream(request: Request) -> Any:
    if engine.reason != "ok":
        return PlainTextResponse(engine.reason, 503)

    async def chunks() -> Any:
        engine.num_streams += 1
        yield b"begin "
        while engine.end_of_streams is None:
            await asyncio.sleep(0.01)
        engine.num_streams -= 1
        yield engine.end_of_streams.encode()

    return StreamingResponse(chunks())


async def health(request: Request) -> Any:
    return JSONResponse({"reason": engine.reason}, 200 if engine.reason == "ok" else 503)


async def control(request: Request) -> Any:
    """/finish, /die and /hang."""
    command = request.url.path.strip("/")
    if command == "die":
        engine.reason, engine.end_of_streams = "engine_dead", "error"
    elif command == "finish":
        engine.end_of_streams = "finished"
    engine.hangs = command == "hang"
    return PlainTextResponse("")


app = Starlette(
    routes=[
        Route("/stream", stream),
        Route("/health", health),
        *(Route(path, control) for path in ("/finish", "/die", "/hang")),
    ]
)

if __name__ == "__main__":
    config = ServerConfig(**json.loads(sys.argv[1]), port=0)
    sock = bind_socket(config)
    code = lifecycle.serve_until_stopped(
        app,
        engine,  # type: ignore[arg-type]
        config,
        sock,
        lambda: print(address_of(sock), flush=True),
    )
    sys.exit(code)
