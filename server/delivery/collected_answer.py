"""An answer that is sent whole, once its last choice has ended."""

from __future__ import annotations

import asyncio

from starlette.types import Receive

from server.delivery.asgi import until_disconnect
from server.delivery.delivery import Delivery
from server.delivery.generation import Generation
from server.errors import APIError


class CollectedAnswer:
    """An `Answer` that gathers its choices until `wait` returns."""

    def __init__(self, generation: Generation, delivery: Delivery) -> None:
        self.generation = generation
        self.num_unfinished = len(generation.choices)
        self.is_touched = False
        self._delivery = delivery
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self, receive: Receive) -> bool:
        """True once all choices have ended, False if the client went away first. Raises `APIError`."""
        listener = asyncio.create_task(until_disconnect(receive))
        try:
            await asyncio.wait((listener, self._over), return_when=asyncio.FIRST_COMPLETED)
            if self._over.done():
                self._over.result()
            return self._over.done()
        finally:
            self._delivery.release(self)
            listener.cancel()

    def flush(self) -> None:
        if self.num_unfinished == 0 and not self._over.done():
            self._over.set_result(None)

    def fail(self, error: APIError) -> None:
        if not self._over.done():
            self._over.set_exception(error)
