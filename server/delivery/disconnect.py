"""Notices that a client has gone away."""

from __future__ import annotations

from starlette.types import Receive


async def until_disconnect(receive: Receive) -> None:
    """Return when the client closes its connection. The request's body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass
