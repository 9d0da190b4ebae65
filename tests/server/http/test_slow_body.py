"""Bodies that come slowly, by a clock that stands still but while a part of a body is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.requests import Request

from server.config import ServerConfig
from server.errors import APIError
from server.http.body import MIN_PROGRESS_BYTES, PROGRESS_TIME_S, read_body
from server.protocol.completions import CompletionRequest

BODY = b'{"prompt": "%s"}' % (b"a" * 4 * MIN_PROGRESS_BYTES)


class SteppedLoop(asyncio.SelectorEventLoop):
    now = 0.0

    def time(self) -> float:
        return self.now


async def read(sizes: Sequence[int], seconds: float) -> CompletionRequest:
    """Read `BODY`, of which parts of these sizes come, the last one repeated, each after `seconds`."""
    loop: Any = asyncio.get_running_loop()
    sent = 0
    coming = iter(sizes)

    async def receive() -> dict[str, Any]:
        nonlocal sent
        loop.now += seconds
        for _ in range(3):  # for what is due by now to be done
            await asyncio.sleep(0)
        start, sent = sent, sent + next(coming, sizes[-1])
        return {"type": "http.request", "body": BODY[start:sent], "more_body": sent < len(BODY)}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
    return await read_body(Request(scope, receive), CompletionRequest, ServerConfig())


@pytest.mark.parametrize(
    ("sizes", "seconds", "is_read"),
    [
        ([len(BODY)], PROGRESS_TIME_S - 1, True),
        ([MIN_PROGRESS_BYTES], PROGRESS_TIME_S - 1, True),
        ([MIN_PROGRESS_BYTES // 4], PROGRESS_TIME_S / 5, True),
        ([len(BODY) - 1, 1], PROGRESS_TIME_S - 1, True),
        ([len(BODY) - 1, 1], PROGRESS_TIME_S + 1, False),
        ([MIN_PROGRESS_BYTES // 4], PROGRESS_TIME_S / 3, False),
        ([1], 1.0, False),
        ([len(BODY) - 100, 1], 1.0, False),
    ],
)
def test_a_body_has_to_come_on(sizes: Sequence[int], seconds: float, is_read: bool) -> None:
    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        if is_read:
            body = runner.run(read(sizes, seconds))
            assert body.model_dump_json(include={"prompt"}).encode() == BODY.replace(b": ", b":")
        else:
            with pytest.raises(APIError) as refused:
                runner.run(read(sizes, seconds))
            assert refused.value.status == 408
