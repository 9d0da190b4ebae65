"""The HTTP client: raw bytes and time-stamps while a request is in flight, meaning only after its end."""

from loadgen.client.connection import Exchange
from loadgen.client.pool import ConnectionPool
from loadgen.client.server import Server

__all__ = ["ConnectionPool", "Exchange", "Server"]
