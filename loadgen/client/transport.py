"""Connections through the event loop: encrypted ones, and all where there is no `SocketPoller`."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import cast

from loadgen.sockets import Receiver


class TransportLink(asyncio.Protocol):
    """As a `SocketLink`, open once `connection_made` was called. Times are those of the reads."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._transport: asyncio.Transport | None = None

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def send(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._receiver.received(data, time.monotonic_ns())

    def connection_lost(self, error: Exception | None) -> None:
        self._receiver.lost(error)
