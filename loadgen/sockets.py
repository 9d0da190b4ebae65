"""TCP sockets past the event loop: all that are ready are read at one wake-up, with the kernel's times.

Neither the wait for this process, nor for sockets that are read before, shows in when bytes arrived. A pause
between wake-ups, so that more are read at once, was tried and saved nothing. Linux only.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
import time
from typing import Protocol

from loadgen.schedule import NS_PER_S

READ_BYTES = 64 * 1024
READS_AT_ONCE = 10  # which takes some 0.2 ms, as long as a request that is due may have to wait
SO_TIMESTAMPNS = 35  # has no name in `socket`
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

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._links: dict[int, SocketLink] = {}  # by descriptor
        self._epoll = select.epoll()
        loop.add_reader(self._epoll, self._read)

    def add(self, descriptor: int, link: SocketLink) -> None:
        self._links[descriptor] = link
        self._epoll.register(descriptor, select.EPOLLIN)

    def watch_for(self, descriptor: int, events: int) -> None:
        self._epoll.modify(descriptor, events)

    def remove(self, descriptor: int) -> None:
        self._epoll.unregister(descriptor)
        del self._links[descriptor]

    def close(self) -> None:
        """Close all sockets as well."""
        for link in list(self._links.values()):
            link.close()
        self._loop.remove_reader(self._epoll)
        self._epoll.close()

    def _read(self) -> None:
        """Read and write what is ready; if more is, the event loop calls again at its next turn."""
        offset_ns = _monotonic_minus_realtime_ns()
        for descriptor, events in self._epoll.poll(0, READS_AT_ONCE):
            link = self._links.get(descriptor)
            if link is not None:  # else closed because of what another socket brought
                link.ready(events, offset_ns)


class SocketLink:
    """One connected socket. What it brings goes to `receiver`, until `close`."""

    __slots__ = ("_last_ns", "_poller", "_receiver", "_socket", "_unsent", "closed")

    def __init__(self, poller: SocketPoller, connected: socket.socket, receiver: Receiver) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # some sandboxes have no such times
            connected.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.closed = False
        self._poller, self._socket, self._receiver = poller, connected, receiver
        self._last_ns = 0
        self._unsent = b""
        poller.add(connected.fileno(), self)

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
            self._poller.watch_for(self._socket.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def close(self) -> None:
        """Nothing is received any more, and what the socket has not taken is not sent."""
        if not self.closed:
            self.closed = True
            self._poller.remove(self._socket.fileno())
            self._socket.close()

    def ready(self, events: int, offset_ns: int) -> None:
        """Read, and write what is left. `offset_ns` is the monotonic clock minus the real-time clock."""
        if events & select.EPOLLOUT:
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
        self._poller.watch_for(self._socket.fileno(), select.EPOLLIN)
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
