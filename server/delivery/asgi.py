"""The two ends of an ASGI connection as answers use them: a `send` without tasks, a client that leaves."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, cast

from starlette.types import Message, Receive, Send


async def until_disconnect(receive: Receive) -> None:
    """Return when the client closes its connection. The request's body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


class FrameWriter:
    """Steps the `send` coroutine by hand, once: while the client keeps up it finishes at once, with no task.

    When flow control makes it wait, a task takes the half-run coroutine over and the writer is `is_blocked`
    until the client has read on; the caller keeps what comes meanwhile and is called back to write it.
    """

    def __init__(
        self, send: Send, on_writable: Callable[[], None], on_error: Callable[[Exception], None]
    ) -> None:
        # Every server's `send` is a coroutine function; the protocol promises less.
        self._send = cast(Callable[[Message], Coroutine[Any, Any, None]], send)
        self._on_writable = on_writable
        self._on_error = on_error
        self._waiter: asyncio.Task[None] | None = None
        self.is_blocked = False

    def write(self, body: bytes, *, more: bool) -> None:
        """Must not be called while blocked."""
        coroutine = self._send({"type": "http.response.body", "body": body, "more_body": more})
        try:
            yielded = coroutine.send(None)
        except StopIteration:
            return
        except Exception as error:
            self._on_error(error)
            return
        self.is_blocked = True
        self._waiter = asyncio.get_running_loop().create_task(_resume(coroutine, yielded))
        self._waiter.add_done_callback(self._resumed)

    def close(self) -> None:
        if self._waiter is not None:
            self._waiter.cancel()

    def _resumed(self, waiter: asyncio.Task[None]) -> None:
        self._waiter = None
        self.is_blocked = False
        if waiter.cancelled():
            return
        error = waiter.exception()
        if isinstance(error, Exception):
            self._on_error(error)
        else:
            self._on_writable()


async def _resume(coroutine: Coroutine[Any, Any, None], yielded: Any) -> None:
    await _continue(coroutine, yielded)


@types.coroutine
def _continue(coroutine: Coroutine[Any, Any, None], yielded: Any) -> Generator[Any, Any, None]:
    """Await what the coroutine has already yielded, then run the rest of it."""
    yield yielded
    yield from coroutine.__await__()
