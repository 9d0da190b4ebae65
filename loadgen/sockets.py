"""Bytes that leave at once, whatever the event loop has queued."""

from __future__ import annotations

import asyncio
import contextlib
import os


def descriptor_of(transport: asyncio.BaseTransport) -> int | None:
    """The socket's, for `write_now`; None where TLS stands between."""
    raw = transport.get_extra_info("socket")
    return None if raw is None or transport.get_extra_info("sslcontext") else int(raw.fileno())


def write_now(transport: asyncio.Transport, descriptor: int | None, data: bytes) -> None:
    """As `transport.write` of an open transport, but past uvloop's queue, which sends only when all else that
    is ready has been dealt with: a time taken just before would be too early by that."""
    written = 0
    if descriptor is not None and not transport.get_write_buffer_size():
        with contextlib.suppress(OSError):  # full, or broken, which the transport finds out
            written = os.write(descriptor, data)
    if written < len(data):
        transport.write(data[written:])
