"""A serving process from its first request to its exit code: signals, drain, and the death of the engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from engine.handle import EngineHandle
from server.config import ServerConfig
from server.http.connection import HttpProtocol
from server.http.event_loop import EVENTS_A_TURN, new_event_loop
from server.http.listen import ListenError

logger = logging.getLogger(__name__)

HEALTH_INTERVAL_S = 0.25  # how soon the death of the engine is seen
DRAIN_INTERVAL_S = 0.05
LISTEN_BACKLOG = 2048  # connections that the kernel keeps until they are accepted
LAST_WORDS_S = 2  # for open streams to write their error or abort before their tasks are cancelled
ENGINE_STOP_S = 10.0  # a thread stuck in a kernel cannot be stopped; the process then goes without it
DEAD_ENGINE_STOP_S = 1.0  # nothing is left to be finished, and its thread may wait for a rank that is gone


def serve_until_stopped(
    app: ASGIApp,
    engine: EngineHandle,
    config: ServerConfig,
    sock: socket.socket,
    on_ready: Callable[[], None] = lambda: None,
) -> int:
    """Serve on a bound socket until SIGTERM, SIGINT or the engine's death; the exit code of the process.

    The first signal drains: new requests are refused, those in flight go on for `--shutdown-timeout` seconds
    and are aborted then; 0. A second signal ends the process at once. A dead engine gives 1. The engine is
    shut down in any case. `on_ready` is called when the socket accepts. Call it on the main thread.
    Raises `ListenError`.
    """
    lifecycle = _Lifecycle(app, engine, config, sock, on_ready)
    handled = (signal.SIGTERM, signal.SIGINT)
    previous = [signal.signal(signum, lifecycle.on_signal) for signum in handled]
    try:
        with asyncio.Runner(loop_factory=lambda: new_event_loop(config.event_loop)) as runner:
            exit_code = runner.run(lifecycle.run())
    finally:
        for signum, handler in zip(handled, previous, strict=True):
            signal.signal(signum, handler)
    if lifecycle.engine_is_stuck:
        os._exit(1)  # the interpreter's own end would wait for the thread, or crash beside it
    return exit_code


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling; tells when it listens."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        for sock in sockets or ():  # asyncio has one number for how many to accept and how many to keep
            sock.listen(LISTEN_BACKLOG)
        self._on_ready()


class _Lifecycle:
    def __init__(
        self,
        app: ASGIApp,
        engine: EngineHandle,
        config: ServerConfig,
        sock: socket.socket,
        on_ready: Callable[[], None],
    ) -> None:
        self.engine = engine
        self.config = config
        self.sock = sock
        self.server = _Server(_uvicorn_config(app, config), on_ready)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stop_requested = asyncio.Event()
        self.signalled = False
        self.engine_is_stuck = False

    def on_signal(self, signum: int, frame: FrameType | None) -> None:
        """Runs between two bytecodes of the main thread, so also while the event loop is busy."""
        if self.signalled:
            os.write(2, b"octavo: second signal, ending at once\n")
            os._exit(128 + signum)
        self.signalled = True
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.stop_requested.set)

    async def run(self) -> int:
        self.loop = asyncio.get_running_loop()
        if self.signalled:  # before there was a loop to tell
            self.stop_requested.set()
        serving = asyncio.create_task(self._serve())
        supervising = asyncio.create_task(self._supervise())
        try:
            await asyncio.wait((serving, supervising), return_when=asyncio.FIRST_COMPLETED)
            self.server.should_exit = True
            await serving
            return supervising.result() if supervising.done() else 1  # else the server could not start
        finally:
            supervising.cancel()
            await self._stop_engine()

    async def _serve(self) -> None:
        try:
            await self.server.serve(sockets=[self.sock])
        except OSError as error:  # another process bound the same address and listened first
            raise ListenError(self.config, error) from None

    async def _supervise(self) -> int:
        """Wait for a reason to stop, do what it asks of requests in flight, and return the exit code."""
        while not self.stop_requested.is_set():
            health = self.engine.health()
            if health.reason == "engine_dead":
                logger.error("the engine died: %s", health.detail)
                return 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stop_requested.wait(), HEALTH_INTERVAL_S)
        return await self._drain()

    async def _drain(self) -> int:
        """Let requests in flight finish while new ones, which can still connect, are told 503."""
        assert self.loop is not None
        self.engine.drain()
        timeout_s = self.config.shutdown_timeout
        logger.info("draining: requests in flight have %g s; a second signal ends at once", timeout_s)
        deadline = self.loop.time() + timeout_s
        while self._in_flight() and self.loop.time() < deadline:
            if self.engine.health().reason == "engine_dead":
                return 1
            await asyncio.sleep(DRAIN_INTERVAL_S)
        if left := self._in_flight():
            logger.warning("aborting %d requests that did not finish in %g s", left, timeout_s)
            await self._stop_engine()
        return 0

    def _in_flight(self) -> int:
        stats = self.engine.stats()
        return max(stats.num_running + stats.num_waiting, len(self.server.server_state.tasks))

    async def _stop_engine(self) -> None:
        """Bounded in time, where `engine.shutdown()` is not; off the loop, which has streams to write."""
        if self.engine_is_stuck:
            return
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stop() -> None:
            self.engine.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop has ended without it
                loop.call_soon_threadsafe(stopped.set)

        threading.Thread(target=stop, name="octavo-stop-engine", daemon=True).start()
        is_dead = self.engine.health().reason == "engine_dead"
        try:
            await asyncio.wait_for(stopped.wait(), DEAD_ENGINE_STOP_S if is_dead else ENGINE_STOP_S)
        except TimeoutError:
            logger.error("the engine thread does not stop; ending without it")
            self.engine_is_stuck = True


def _uvicorn_config(app: ASGIApp, config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=HttpProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # a formatted line for each request is loop time that streams need
        server_header=False,
        backlog=EVENTS_A_TURN,
        timeout_keep_alive=config.timeout_keep_alive,
        timeout_graceful_shutdown=LAST_WORDS_S,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
    )
