"""A streamed answer: an ASGI response that `Delivery` flushes once per engine step."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.delivery.asgi import FrameWriter, until_disconnect
from server.delivery.choice import Choice
from server.delivery.delivery import Delivery
from server.delivery.generation import Generation
from server.errors import APIError

logger = logging.getLogger(__name__)

KEEP_ALIVE = b": keep-alive\n\n"
SSE_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class StreamFormat(Protocol):
    """The events of one streamed answer, as bytes; called in the order of the stream."""

    def openings(self) -> bytes:
        """What comes once, before any text, when the first token exists."""
        ...

    def delta(self, choice: Choice) -> bytes:
        """What the choice has gained since its last call, its end included; may be empty."""
        ...

    def closing(self) -> bytes:
        """What comes after all choices have ended."""
        ...

    def failure(self, error: APIError) -> bytes:
        """What comes, at any moment, instead of all that is left."""
        ...


class StreamAnswer(Response):
    """Writes at most one body per step, with the frames of all choices.

    A client that reads slowly costs nothing but memory for its own text: while the writer is blocked, tokens
    pile up in the choices, to leave as one chunk each. One that stays stuck is given up.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        generation: Generation,
        events: StreamFormat,
        delivery: Delivery,
        *,
        ping_interval: float,
        stuck_timeout: float,
    ) -> None:
        """`ping_interval` and `stuck_timeout` are seconds; a ping interval of 0 sends no comments."""
        self.generation = generation
        self.num_unfinished = len(generation.choices)
        self.is_touched = False
        self.status_code = 200
        self.background = None
        self.init_headers(SSE_HEADERS)
        self._events = events
        self._delivery = delivery
        self._ping_interval = ping_interval
        self._stuck_timeout = stuck_timeout
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._writer: FrameWriter | None = None
        self._unsent = list(generation.choices)  # those whose finish chunk has not been sent
        self._is_opened = False
        self._is_complete = False  # the last frame has been handed to the writer
        self._error: APIError | None = None
        self._last_write = 0.0
        self._stuck_timer: asyncio.TimerHandle | None = None
        self._ping_timer: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs until the last frame is written or the client is gone; the engine is told in either case."""
        listener: asyncio.Task[None] | None = None
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            self._writer = FrameWriter(scope["state"]["send_body"], self._on_writable, self._give_up)
            self._last_write = self._loop.time()
            self._schedule_ping()
            self.flush()
            listener = asyncio.create_task(until_disconnect(receive))
            await asyncio.wait((listener, self._over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._delivery.release(self)
            self._is_complete = True
            for timer in (self._stuck_timer, self._ping_timer):
                if timer is not None:
                    timer.cancel()
            if self._writer is not None:
                self._writer.close()
            if listener is not None:
                listener.cancel()

    def flush(self) -> None:
        writer = self._writer
        if writer is None or writer.is_blocked or self._is_complete:
            return
        body = self._news() if self._error is None else self._failure()
        if body:
            self._write(body)

    def fail(self, error: APIError) -> None:
        self._error = error
        self.flush()

    def _failure(self) -> bytes:
        assert self._error is not None
        self._is_complete = True
        return self._events.failure(self._error)

    def _news(self) -> bytes:
        """Frames for everything that has come since the last flush."""
        opening = b"" if self._is_opened else self._open()
        if not self._is_opened:
            return b""
        frames = opening + b"".join(map(self._events.delta, self._unsent))
        if self.num_unfinished < len(self._unsent):
            self._unsent = [choice for choice in self._unsent if choice.finish_reason is None]
            if not self._unsent:
                self._is_complete = True
                frames += self._events.closing()
        return frames

    def _open(self) -> bytes:
        """What comes once, as soon as there is any token."""
        if not any(choice.num_tokens or choice.finish_reason for choice in self.generation.choices):
            return b""
        self._is_opened = True
        return self._events.openings()

    def _write(self, body: bytes) -> None:
        assert self._writer is not None
        self._writer.write(body, more=not self._is_complete)
        self._last_write = self._loop.time()
        if self._writer.is_blocked:
            self._stuck_timer = self._loop.call_later(self._stuck_timeout, self._on_stuck)
        elif self._is_complete:
            self._finish()

    def _on_writable(self) -> None:
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
        if self._is_complete:
            self._finish()
        else:
            self.flush()

    def _on_stuck(self) -> None:
        logger.warning("%s: client does not read its stream, aborted", self.generation.response_id)
        self._finish()

    def _give_up(self, error: Exception) -> None:
        """The server could not write: the client is gone."""
        logger.debug("%s: writing failed: %s", self.generation.response_id, error)
        self._finish()

    def _finish(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _schedule_ping(self) -> None:
        if self._ping_interval > 0:
            due = self._last_write + self._ping_interval
            self._ping_timer = self._loop.call_at(due, self._ping)

    def _ping(self) -> None:
        assert self._writer is not None
        is_silent = self._loop.time() - self._last_write >= self._ping_interval
        if is_silent and not self._writer.is_blocked and not self._is_complete:
            self._write(KEEP_ALIVE)
        elif is_silent:
            self._last_write = self._loop.time()
        self._schedule_ping()
