"""TCP sockets of an event loop: many are read at one wake-up, and the kernel tells when bytes arrived.

A wake-up of the event loop costs more than the read of a small chunk that it is for, and chunks come in
bursts: a server writes those of a whole batch one after the other. So what comes is read at once, but what
comes within `PAUSE_NS` after that is read together. Times do not suffer, since they are the kernel's: neither
the pause, nor the wait for this process or for sockets that are read before, shows in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import struct
import sys
import time
from selectors import EVENT_READ, EVENT_WRITE
from typing import Protocol

from loadgen.timer import NS_PER_S, make_timer

PAUSE_NS = 200_000
READ_BYTES = 64 * 1024
SO_TIMESTAMPNS = 35 if sys.platform == "linux" else None  # has no name in `socket`
TIMESPEC = struct.Struct("@ll")  # s and ns of CLOCK_REALTIME
ANCILLARY_BYTES = socket.CMSG_SPACE(TIMESPEC.size)
CLOCKS_READ_WITHIN_NS = 10_000


class Receiver(Protocol):
    """Who is told what a connection brings. Times are `time.monotonic_ns()`."""

    def received(self, data: bytes, time_ns: int) -> None: ...

    def lost(self, error: Exception | None) -> None:
        """The other side has closed, or with `error` broken, the connection. Nothing follows."""


class SocketPoller:
    """The sockets of one event loop that are read and written past it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pause_ns: int = PAUSE_NS) -> None:
        self._loop = loop
        self._pause_ns = pause_ns
        self.selector = selectors.DefaultSelector()
        self._timer = make_timer(loop, self._resume)
        self._loop.add_reader(self.selector, self._readable)

    def close(self) -> None:
        """Close all sockets as well."""
        for key in list(self.selector.get_map().values()):
            key.data.close()
        self._loop.remove_reader(self.selector)
        self._timer.close()
        self.selector.close()

    def _readable(self) -> None:
        if self._pause_ns:
            self._loop.remove_reader(self.selector)
            self._timer.wake_at(time.monotonic_ns() + self._pause_ns)
        self._drain()

    def _resume(self) -> None:
        self._loop.add_reader(self.selector, self._readable)
        self._drain()

    def _drain(self) -> None:
        offset_ns = _monotonic_minus_realtime_ns()
        for key, events in self.selector.select(0):
            key.data.ready(events, offset_ns)


class SocketLink:
    """One connected socket. What it brings goes to `receiver`, until `close`."""

    __slots__ = ("_last_ns", "_poller", "_receiver", "_socket", "_unsent", "closed")

    def __init__(self, poller: SocketPoller, connected: socket.socket, receiver: Receiver) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if SO_TIMESTAMPNS is not None:
            connected.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.closed = False
        self._poller, self._socket, self._receiver = poller, connected, receiver
        self._last_ns = 0
        self._unsent = b""
        poller.selector.register(connected, EVENT_READ, self)

    @property
    def has_unsent(self) -> bool:
        """Whether the socket has not yet taken all that was sent."""
        return bool(self._unsent)

    def send(self, data: bytes) -> None:
        """Now, as far as the socket takes it, and the rest as soon as it does. The link must be open."""
        if self._unsent:
            self._unsent += data
            return
        sent = 0
        with contextlib.suppress(OSError):  # full, or broken, which reading finds out
            sent = self._socket.send(data)
        if sent < len(data):
            self._unsent = data[sent:]
            self._poller.selector.modify(self._socket, EVENT_READ | EVENT_WRITE, self)

    def close(self) -> None:
        """Nothing is received any more, and what the socket has not taken is not sent."""
        if not self.closed:
            self.closed = True
            self._poller.selector.unregister(self._socket)
            self._socket.close()

    def ready(self, events: int, offset_ns: int) -> None:
        """`offset_ns` is the monotonic clock minus the real-time clock."""
        if self.closed:  # because of what another socket brought
            return
        if events & EVENT_WRITE:
            self._send_rest()
        try:
            data, ancillary, _, _ = self._socket.recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        if not data:
            self._lose(None)
            return
        if ancillary:
            seconds, nanoseconds = TIMESPEC.unpack(ancillary[0][2])
            time_ns = seconds * NS_PER_S + nanoseconds + offset_ns
        else:
            time_ns = time.monotonic_ns()
        if time_ns < self._last_ns:  # the clocks cannot be compared to the microsecond
            time_ns = self._last_ns
        self._last_ns = time_ns
        self._receiver.received(data, time_ns)

    def _send_rest(self) -> None:
        data, self._unsent = self._unsent, b""
        self._poller.selector.modify(self._socket, EVENT_READ, self)
        self.send(data)

    def _lose(self, error: Exception | None) -> None:
        self.close()
        self._receiver.lost(error)


def _monotonic_minus_realtime_ns() -> int:
    for _ in range(3):
        before_ns = time.monotonic_ns()
        realtime_ns = time.time_ns()
        after_ns = time.monotonic_ns()
        if after_ns - before_ns < CLOCKS_READ_WITHIN_NS:  # else this process was held up between them
            break
    return (before_ns + after_ns) // 2 - realtime_ns
