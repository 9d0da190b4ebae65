"""Compiles grammars off the event loop, beside the tokenizing threads, and keeps those used last."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

from engine.constraint import Constraint
from model.grammar.compiler import GrammarCompiler
from model.grammar.source import GrammarError, GrammarSource
from server.delivery.generation import Generation
from server.errors import invalid_schema

MAX_CACHED = 128
TIMEOUT_S = 5.0
NUM_THREADS = 2


class _Compilation(NamedTuple):
    begun: asyncio.Future[None]
    result: asyncio.Future[Constraint]


class Grammars:
    """Used on the event loop. The compiler is made when the first grammar is asked for."""

    def __init__(
        self,
        make_compiler: Callable[[], GrammarCompiler],
        *,
        timeout_s: float = TIMEOUT_S,
        max_cached: int = MAX_CACHED,
    ) -> None:
        self._compiler = lru_cache(maxsize=1)(make_compiler)
        self._timeout_s = timeout_s
        self._max_cached = max_cached
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="octavo-grammar")
        self._compiled: OrderedDict[GrammarSource, _Compilation] = OrderedDict()

    async def constrain(self, generation: Generation) -> None:
        """Have its requests match the grammar that it asks for, if any. Raises `APIError`."""
        if generation.grammar is None:
            return
        try:
            constraint = await self.compile(generation.grammar.source)
        except GrammarError as error:
            raise invalid_schema(generation.grammar.param, str(error)) from None
        for prompt in generation.prompts:
            prompt.request.constraint = constraint

    async def compile(self, source: GrammarSource) -> Constraint:
        """Raises `GrammarError`, for a grammar that takes too long as well, its time in the queue aside.

        One grammar is compiled once, however many ask for it at the same time; so is one that is wrong.
        """
        if source not in self._compiled:
            self._compiled[source] = self._start(source)
            if len(self._compiled) > self._max_cached:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(source)
        begun, result = self._compiled[source]
        await asyncio.wait((begun, result), return_when=asyncio.FIRST_COMPLETED)
        try:
            return await asyncio.wait_for(asyncio.shield(result), self._timeout_s)
        except TimeoutError:
            raise GrammarError(f"compiling it takes more than {self._timeout_s:g} s") from None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self, source: GrammarSource) -> _Compilation:
        loop = asyncio.get_running_loop()
        begun = loop.create_future()

        def compile_it() -> Constraint:
            loop.call_soon_threadsafe(begun.set_result, None)
            return self._compiler().compile(source)

        result = loop.run_in_executor(self._threads, compile_it)
        # Its exception is seen, even if nobody waits for it any more.
        result.add_done_callback(lambda done: done.cancelled() or done.exception())
        return _Compilation(begun, result)
