"""Takes the address before the model loads, and opens it to clients only when the model is ready."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import stat
from typing import Any

from engine.config import ConfigError
from server.config import ServerConfig


class ListenError(RuntimeError):
    """The address cannot be had. The message is one line and names it."""

    def __init__(self, config: ServerConfig, error: OSError) -> None:
        address = config.uds or f"{config.host}:{config.port}"
        hint = "; --port takes another" if error.errno == errno.EADDRINUSE and not config.uds else ""
        super().__init__(f"cannot listen on {address}: {(error.strerror or str(error)).lower()}{hint}")


def bind_socket(config: ServerConfig) -> socket.socket:
    """A bound socket that does not accept yet: clients are refused until it listens. Raises `ListenError`."""
    try:
        return _bind_unix(config.uds) if config.uds else _bind_tcp(config.host, config.port)
    except OSError as error:
        raise ListenError(config, error) from None


def check_certificate(config: ServerConfig) -> None:
    """Raise `ConfigError` for certificate files that could not be served, before the model loads."""
    if config.ssl_certfile is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
    except OSError as error:  # an `SSLError` is one
        raise ConfigError(f"--ssl-certfile, --ssl-keyfile: {error.strerror or error}") from None


def address_of(sock: socket.socket, *, tls: bool = False) -> str:
    """The URL at which a client on this machine reaches a bound socket; for a Unix one, its path."""
    if sock.family == socket.AF_UNIX:
        return str(sock.getsockname())
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _bind_tcp(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    # Without it, connections of a server that just ended would keep the port for a minute.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return _bound(sock, address)


def _bind_unix(path: str) -> socket.socket:
    _remove_stale(path)
    return _bound(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), path)


def _bound(sock: socket.socket, address: str | tuple[Any, ...]) -> socket.socket:
    try:
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def _remove_stale(path: str) -> None:
    """Remove a socket that nothing listens on any more; anything else in the way makes the bind fail."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
