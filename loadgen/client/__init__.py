"""The HTTP client: raw bytes and time-stamps while a request is in flight, meaning only after its end."""

from loadgen.client.pool import Connection, ConnectionPool, Exchange, Server

__all__ = ["Connection", "ConnectionPool", "Exchange", "Server"]
