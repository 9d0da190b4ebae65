"""Where requests go, and their bytes."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Server:
    """Where requests go. `address` is an (ip, port), looked up once, so that no request waits on DNS."""

    host: str  # as in the URL, for the Host header and TLS
    address: tuple[str, int]
    tls: ssl.SSLContext | None
    path_prefix: str
    headers: str = ""  # extra header lines, each with its CRLF

    @classmethod
    def resolve(cls, base_url: str, api_key: str | None = None) -> Server:
        """Raises ValueError for a URL that is not http(s)://host..., OSError if the name is not found."""
        url = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"--base-url {base_url}: expected http://HOST:PORT or https://HOST:PORT")
        port = url.port or (443 if url.scheme == "https" else 80)
        found = socket.getaddrinfo(url.hostname, port, type=socket.SOCK_STREAM)
        # A name with IPv6 and IPv4 addresses: servers listen on IPv4 more often than not.
        address = min(found, key=lambda info: info[0] != socket.AF_INET)[4]
        return cls(
            host=url.netloc.rpartition("@")[2],
            address=(str(address[0]), port),
            tls=ssl.create_default_context() if url.scheme == "https" else None,
            path_prefix=url.path.rstrip("/").removesuffix("/v1"),
            headers=f"Authorization: Bearer {api_key}\r\n" if api_key else "",
        )

    def request(
        self, method: str, path: str, body: Sequence[bytes] = (), request_id: str = ""
    ) -> list[bytes]:
        """The bytes of a request, as pieces, so that large bodies can share theirs."""
        head = f"{method} {self.path_prefix}{path} HTTP/1.1\r\nHost: {self.host}\r\n{self.headers}"
        if request_id:
            head += f"X-Request-Id: {request_id}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {sum(map(len, body))}\r\n"
        return [f"{head}Accept-Encoding: identity\r\n\r\n".encode(), *body]
