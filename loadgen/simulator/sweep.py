"""The calibration load: steps of every shape within the server's limits, in a bounded time.

Four kinds of phases. *prompts*: one request at a time, to see prompts alone. *waves*: many requests at once
whose answers end one after the other, so that every batch size occurs, over short and long contexts.
*bursts*: prompts that come a few at a time beside answers that go on, so that chunks of all sizes share steps
with few decodes and with many. *users*: closed loops, as mixed as real traffic. A phase that runs out of time
drops what it has in flight.

Contexts as deep as real ones take long to compute, so waves and long answers begin with the prompts of one
library, which are cached from their first time on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import numpy as np
import orjson

from engine.config import SchedulerConfig
from loadgen.client import ConnectionPool, Server
from loadgen.client.measure import measure
from loadgen.client.sse import split_events
from loadgen.prompts import TokenRange
from loadgen.run.preflight import ServerUnusableError, served_model
from loadgen.run.status_lines import StatusLines
from loadgen.schedule import ScheduledRequest

_SHARES = {"prompts": 0.1, "waves": 0.45, "bursts": 0.25, "users": 0.2}
_SHORT_PROMPT = 24
_FEW_USERS = 64  # that one client can serve as fast as they come
_LEAST_OUTPUT = 4
_MOST_OUTPUT = 256
_LIBRARY_SHARE = 0.14  # of all the time, to compute the prompts of the waves
_UNEVEN = 64  # times as long as the shortest of them is the longest
_ONE_IS_LONG = 64  # of so many, one is as long as a prompt may be
_LARGEST_BURST = 24


@dataclass(frozen=True, slots=True)
class Ask:
    prompt: list[int]
    output_tokens: int


@dataclass(slots=True)
class Phase:
    """What a client saw in one phase. Times are of the monotonic clock."""

    name: str
    begin_ns: int
    end_ns: int = 0
    num_prompt_tokens: int = 0
    seen: list[tuple[str, int, int]] = field(default_factory=list)  # `ClientView`s of whole answers

    @property
    def is_calm(self) -> bool:
        """Whether the client was not flooding: else its own and the parser's queue would show in the TTFT."""
        return self.name in ("prompts", "few users")


class Sweep:
    def __init__(
        self,
        base_url: str,
        limits: SchedulerConfig,
        *,
        seconds: float,
        max_prompt_tokens: int,
        token_range: TokenRange,
        seed: int = 0,
    ) -> None:
        """`limits` are the server's. Prompts have up to `max_prompt_tokens`, except those of waves."""
        self.limits = limits
        self.seconds = seconds
        self.max_prompt_tokens = max_prompt_tokens
        self.phases: list[Phase] = []
        self._server = Server.resolve(base_url)
        self._pool = ConnectionPool(self._server, spares=32)
        self._model = ""
        self._token_range = token_range
        self._library: list[list[int]] = []  # prompts that come again and again
        self._prompt_rate = 0.0  # prompt tokens per second, one request at a time
        self._failure = ""  # the last request's
        self._rng = np.random.default_rng(seed)
        self._deadline_s = 0.0
        self._status = StatusLines()

    def run(self) -> list[Phase]:
        """Raises `ServerUnusableError` or OSError for a server that cannot be used."""
        with self._status:
            asyncio.run(self._run())
        return self.phases

    async def _run(self) -> None:
        self._model = (await served_model(self._pool, self._server, None)).name
        await self._timed("prompts", _SHARES["prompts"], self._users(1, self._prompts_alone()))
        if not self.phases[0].seen:
            raise ServerUnusableError(f"no prompt was answered ({self._failure})")
        alone = self.phases[0]
        self._prompt_rate = alone.num_prompt_tokens / (alone.end_ns - alone.begin_ns) * 1e9
        self._library = self.new_library(self._prompt_rate)
        await self._timed("waves", _SHARES["waves"], self._waves())
        counts = self._counts_beside()
        for count in counts:
            await self._timed("bursts", _SHARES["bursts"] / len(counts), self._bursts_beside(count))
        counts = self._user_counts()
        share = _SHARES["users"] / len(counts)
        longest = min(self.max_prompt_tokens, int(self._prompt_rate * share * self.seconds / 8))
        for count in counts:
            name = "few users" if count <= _FEW_USERS else "users"
            await self._timed(name, share, self._users(count, self._mixed(max(longest, _SHORT_PROMPT))))
        await self._pool.close()

    async def _timed(self, name: str, share: float, run: Coroutine[Any, Any, None]) -> None:
        phase = Phase(name, time.monotonic_ns())
        self.phases.append(phase)
        self._deadline_s = time.monotonic() + share * self.seconds
        await run
        phase.end_ns = time.monotonic_ns()

    async def _waves(self) -> None:
        """As many requests as may run, some, and few; few long ones and all others; as many short ones."""
        library, rows = self._library, self.limits.max_num_seqs
        some, few = max(rows // 4, 1), max(rows // 16, 1)
        longest, others = library[:few], library[few:] or library
        short = [self._tokens(_SHORT_PROMPT) for _ in library]
        waves = [(library, rows), (longest, few), (library, some)]
        waves += [(others, len(others)), (library, few), (short, rows)]
        for prompts, count in cycle(waves):
            if self._time_left() <= 0:
                break
            await self._wave(prompts, count)

    def new_library(self, prompt_rate: float) -> list[list[int]]:
        """As many prompts as may run: a few as long as may be, the others as uneven as real ones.

        Longest first. They take up to 5/8 of the memory, and at `prompt_rate` (tokens per second)
        `_LIBRARY_SHARE` of the time to compute.
        """
        limits, longest = self.limits, self.max_prompt_tokens
        room = limits.num_blocks * limits.block_size * 5 / 8
        total = min(prompt_rate * self.seconds * _LIBRARY_SHARE, room)
        num_long = -(-limits.max_num_seqs // _ONE_IS_LONG)
        long = min(total / 4 / num_long, longest)
        draws = [self._draw(-(-longest // _UNEVEN), longest) for _ in range(limits.max_num_seqs - num_long)]
        scale = min(total * 3 / 4 / max(sum(draws), 1), 1.0)
        lengths = sorted([long] * num_long + [draw * scale for draw in draws], reverse=True)
        return [self._tokens(max(int(length), 1)) for length in lengths]

    async def _wave(self, prompts: list[list[int]], count: int) -> None:
        """So many of the prompts, in any order, whose answers end one after the other, down to the last."""
        chosen = self._rng.permutation(len(prompts))[:count].tolist()
        outputs = [_LEAST_OUTPUT + place * _MOST_OUTPUT // count for place in range(count)]
        asks = [self._ask(prompts[which], output) for which, output in zip(chosen, outputs, strict=True)]
        await asyncio.gather(*(self._send(ask) for ask in asks))

    def _counts_beside(self) -> list[int]:
        """Of the decodes that run beside bursts: three quarters of all that may, a quarter of that, ..."""
        most = max(self.limits.max_num_seqs * 3 // 4, 1)
        return [most // 4**i for i in range(10) if most // 4**i >= min(most, 3)]

    async def _bursts_beside(self, count: int) -> None:
        """So many answers that go on to the end, and bursts of prompts, each when the one before is answered.

        A burst is of 1 to 24 prompts: the more of them wait, the larger a scheduler makes its chunks. The
        answers are as long as a quarter of the memory has room for.
        """
        limits = self.limits
        room = max(limits.num_blocks * limits.block_size // 4 // count, 1)
        chosen = self._rng.permutation(len(self._library))[:count].tolist()
        asks = [self._ask(self._library[which], room) for which in chosen]
        going_on = [asyncio.ensure_future(self._send(ask)) for ask in asks]
        while self._time_left() > 0:
            size = self._draw(1, _LARGEST_BURST)
            asks = [Ask(self._prompt(16, self.max_prompt_tokens), self._draw(1, 16)) for _ in range(size)]
            await asyncio.gather(*(self._send(ask) for ask in asks))
        await asyncio.gather(*going_on)

    def _user_counts(self) -> list[int]:
        """1, 4, 16, ... as many as run at once."""
        rows = self.limits.max_num_seqs
        return [4**i for i in range(10) if 4**i < rows] + [rows]

    async def _users(self, count: int, asks: Iterator[Ask]) -> None:
        """Each user asks again when answered, until the time is over."""

        async def user() -> None:
            while self._time_left() > 0:
                await self._send(next(asks))

        await asyncio.gather(*(user() for _ in range(count)))

    def _prompts_alone(self) -> Iterator[Ask]:
        while True:
            yield Ask(self._prompt(1, self.max_prompt_tokens), 1)

    def _mixed(self, longest_prompt: int) -> Iterator[Ask]:
        most = min(_MOST_OUTPUT, self.limits.max_model_len - longest_prompt)
        while True:
            yield Ask(self._prompt(16, longest_prompt), self._draw(_LEAST_OUTPUT, most))

    def _draw(self, low: int, high: int) -> int:
        """Log-uniform, both included."""
        return int(np.exp(self._rng.uniform(np.log(low), np.log(high + 1))))

    def _prompt(self, shortest: int, longest: int) -> list[int]:
        """That nobody has sent before, of a length drawn log-uniformly."""
        return self._tokens(self._draw(shortest, longest))

    def _tokens(self, count: int) -> list[int]:
        tokens: list[int] = self._rng.integers(self._token_range.low, self._token_range.high, count).tolist()
        return tokens

    def _ask(self, prompt: list[int], output_tokens: int) -> Ask:
        """For so many tokens, or as many as the server may give."""
        return Ask(prompt, min(output_tokens, self.limits.max_model_len - len(prompt)))

    async def _send(self, ask: Ask) -> None:
        """Send one request; what the deadline cuts off is dropped, here and in the server."""
        options = {
            "model": self._model,
            "prompt": ask.prompt,
            "max_tokens": ask.output_tokens,
            "stream": True,
        }
        body = orjson.dumps(options | {"ignore_eos": True, "temperature": 0, "return_token_ids": True})
        exchange = await self._pool.fetch(
            self._server.request("POST", "/v1/completions", [body]), max(self._time_left(), 0.01)
        )
        self._status.update(self._progress)
        self.phases[-1].num_prompt_tokens += len(ask.prompt)
        result = measure(ScheduledRequest(0, 0, len(ask.prompt), ask.output_tokens, 0), "", exchange, 0)
        self._failure = f"{result.failure}: {result.detail}"
        if result.ok and result.first_token_ns is not None and result.sent_ns is not None:
            answer_id = _answer_id(exchange.response.parts)
            self.phases[-1].seen.append((answer_id, result.sent_ns, result.first_token_ns))

    def _progress(self, elapsed_s: float) -> list[str]:
        return [f"{elapsed_s:.0f} of {self.seconds:.0f} s: {self.phases[-1].name}"]

    def _time_left(self) -> float:
        return self._deadline_s - time.monotonic()


def _answer_id(parts: list[bytes]) -> str:
    """The id that all events of a stream name: the server's logs name the request by it."""
    data, _ = split_events(b"".join(parts))[0]
    return str(orjson.loads(data)["id"])
