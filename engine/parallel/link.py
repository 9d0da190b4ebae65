"""Numbered messages over a stream socket, of any size: how rank 0 and one other rank talk."""

from __future__ import annotations

import socket
import struct
import threading
from typing import NamedTuple

_HEADER = struct.Struct("<QQ")  # number, bytes of payload
_READ_BYTES = 1 << 20


class Message(NamedTuple):
    number: int
    payload: bytes


class LinkClosedError(ConnectionError):
    """The other side has ended."""


class Link:
    """One end of a socket pair. Sending is for one thread; several may receive."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._received = bytearray()
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, number: int, payload: bytes = b"") -> None:
        """Returns when the system has taken all of it, which for a large message the other side must read."""
        try:
            self._sock.sendall(_HEADER.pack(number, len(payload)) + payload)
        except OSError as error:
            raise LinkClosedError(str(error)) from None

    def receive(self) -> Message:
        """Wait for the next message."""
        with self._lock:
            while (message := self._take()) is None:
                self._read(0)
            return message

    def receive_ready(self) -> list[Message]:
        """The messages that are there, without waiting."""
        messages = []
        with self._lock:
            try:
                while True:
                    while (message := self._take()) is not None:
                        messages.append(message)
                    self._read(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return messages
            except LinkClosedError:
                if not messages:
                    raise
                return messages

    def close(self) -> None:
        self._sock.close()

    def _read(self, flags: int) -> None:
        try:
            data = self._sock.recv(_READ_BYTES, flags)
        except BlockingIOError:
            raise
        except OSError as error:
            raise LinkClosedError(str(error)) from None
        if not data:
            raise LinkClosedError("the other side has ended")
        self._received += data

    def _take(self) -> Message | None:
        if len(self._received) < _HEADER.size:
            return None
        number, size = _HEADER.unpack_from(self._received)
        end = _HEADER.size + size
        if len(self._received) < end:
            return None
        payload = bytes(memoryview(self._received)[_HEADER.size : end])
        del self._received[:end]
        return Message(number, payload)
