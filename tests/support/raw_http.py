"""A request on a socket that the test holds itself, to be read slowly, idled or cut."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx


def open_request(
    base_url: str, path: str, body: dict[str, Any], receive_buffer: int | None = None
) -> socket.socket:
    """A connection with a POST sent on it. A small `receive_buffer` (bytes) makes the reader seem slow."""
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    url = httpx.URL(base_url)
    connection.connect((url.host, url.port))
    content = json.dumps(body).encode()
    headers = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    connection.sendall(f"POST {path} HTTP/1.1\r\n{headers}\r\n\r\n".encode() + content)
    return connection
