"""The application behind a real uvicorn, in a thread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from server.http.connection import HttpProtocol


@contextmanager
def live_server(app: ASGIApp, send_buffer: int | None = None, keep_alive_s: int = 5) -> Iterator[str]:
    """Yields the base URL. A small `send_buffer` (bytes) makes a client that does not read felt soon."""
    sock = socket.create_server(("127.0.0.1", 0))
    if send_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)  # accepted sockets inherit it
    config = uvicorn.Config(
        app,
        http=HttpProtocol,
        loop="asyncio",
        timeout_keep_alive=keep_alive_s,
        lifespan="on",
        log_level="critical",
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, name="uvicorn", daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        sock.close()
