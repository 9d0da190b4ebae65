"""Driving an ASGI `send` from plain code, whatever it waits for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server.delivery.asgi import FrameWriter


class Transport:
    """A `send` that waits, in more than one way, while the gate is closed."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def send(self, message: Any) -> None:
        if not self.gate.is_set():
            await asyncio.sleep(0)
            await self.gate.wait()
            await asyncio.sleep(0.001)
        if self.error is not None:
            raise self.error
        self.sent.append(message["body"])


def run(scenario: Any) -> None:
    async def main() -> None:
        transport = Transport()
        calls: list[Any] = []
        writer = FrameWriter(transport.send, lambda: calls.append("writable"), calls.append)
        await asyncio.wait_for(scenario(transport, writer, calls), 10)

    asyncio.run(main())


def test_an_open_gate_takes_no_task() -> None:
    async def scenario(transport: Transport, writer: FrameWriter, calls: list[Any]) -> None:
        before = len(asyncio.all_tasks())
        writer.write(b"a", more=True)
        writer.write(b"b", more=True)
        assert transport.sent == [b"a", b"b"] and not writer.is_blocked and calls == []
        assert len(asyncio.all_tasks()) == before

    run(scenario)


def test_a_closed_gate_blocks_until_it_opens() -> None:
    async def scenario(transport: Transport, writer: FrameWriter, calls: list[Any]) -> None:
        transport.gate.clear()
        writer.write(b"a", more=True)
        assert writer.is_blocked and transport.sent == []
        await asyncio.sleep(0.01)
        assert writer.is_blocked
        transport.gate.set()
        while writer.is_blocked:
            await asyncio.sleep(0.001)
        assert transport.sent == [b"a"] and calls == ["writable"]
        writer.write(b"b", more=False)
        assert transport.sent == [b"a", b"b"]

    run(scenario)


@pytest.mark.parametrize("blocked", [True, False])
def test_errors_are_reported_not_raised(blocked: bool) -> None:
    async def scenario(transport: Transport, writer: FrameWriter, calls: list[Any]) -> None:
        transport.error = OSError("gone")
        if blocked:
            transport.gate.clear()
        writer.write(b"a", more=True)
        transport.gate.set()
        while not calls:
            await asyncio.sleep(0.001)
        assert calls == [transport.error]

    run(scenario)


def test_closing_while_blocked_calls_nothing_back() -> None:
    async def scenario(transport: Transport, writer: FrameWriter, calls: list[Any]) -> None:
        transport.gate.clear()
        writer.write(b"a", more=True)
        await asyncio.sleep(0.005)
        writer.close()
        await asyncio.sleep(0.005)
        transport.gate.set()
        await asyncio.sleep(0.005)
        assert transport.sent == [] and calls == []

    run(scenario)
