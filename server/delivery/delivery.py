"""The only loop over outputs: carries every token from the engine thread to the answer that waits for it.

One hand-off per step: the engine thread appends the step's output to a deque and wakes the event loop once;
there, one plain function walks all outputs that have come since. No task is woken and nothing is queued per
token, because that would cost more than the token itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from engine.handle import EngineHandle, EngineUnavailableError
from engine.request import FinishReason, StepOutput
from server.delivery.choice import Choice
from server.delivery.generation import Generation
from server.errors import APIError, internal_error, invalid_schema

logger = logging.getLogger(__name__)

EARLY_ENDS = (FinishReason.ABORT, FinishReason.ERROR)


class Answer(Protocol):
    """Where the choices of one HTTP request go. Both methods are called on the event loop and never wait."""

    generation: Generation
    num_unfinished: int  # choices without a finish reason
    is_touched: bool  # choices have changed since the last flush; owned by `Delivery`

    def flush(self) -> None:
        """Pass on what the choices have gained."""
        ...

    def fail(self, error: APIError) -> None:
        """Nothing more will come."""
        ...


class Delivery:
    """`on_step` is for the engine thread, `on_death` for any, everything else for the event loop."""

    def __init__(self, engine: EngineHandle, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self.loop = loop
        self._inbox: deque[StepOutput] = deque()
        self._is_woken = False
        self._targets: dict[int, tuple[Choice, Answer]] = {}  # by sequence id
        self._answers: set[Answer] = set()

    @property
    def num_open(self) -> int:
        """HTTP requests whose answer is not complete."""
        return len(self._answers)

    def on_step(self, output: StepOutput) -> None:
        self._inbox.append(output)
        if not self._is_woken:
            self._is_woken = True
            self._call_on_loop(self._deliver)

    def on_death(self, error: BaseException) -> None:
        self._call_on_loop(self._fail_all)

    def submit(self, answer: Answer) -> None:
        """Hand the answer's requests to the engine: all of them or, on an error, none.

        Raises as `EngineHandle.submit`, which a stalled engine would let wait without an end.
        """
        health = self.engine.health()
        if health.reason == "engine_stalled":
            raise EngineUnavailableError(health.reason, f"the engine stalls: {health.detail}")
        self._answers.add(answer)
        for choice in answer.generation.choices:
            self._targets[choice.sequence_id] = (choice, answer)
        try:
            for prompt in answer.generation.prompts:
                self.engine.submit(prompt.request)
        except Exception:
            self.release(answer)
            raise

    def release(self, answer: Answer) -> None:
        """Forget the answer; whatever of it still runs is aborted."""
        self._answers.discard(answer)
        for choice in answer.generation.choices:
            self._targets.pop(choice.sequence_id, None)
        if answer.num_unfinished:
            for prompt in answer.generation.prompts:
                self.engine.abort(prompt.request.request_id)

    def abort(self, response_id: str | None, error: APIError) -> list[str]:
        """End one open answer, or with None all of them, by an error; the ids of those that were open."""
        ended = [a for a in self._answers if response_id in (None, a.generation.response_id)]
        for answer in ended:
            self.release(answer)
            answer.fail(error)
        return [answer.generation.response_id for answer in ended]

    def _call_on_loop(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self.loop.call_soon_threadsafe(callback)

    def _deliver(self) -> None:
        self._is_woken = False  # before the walk, so that what is appended meanwhile wakes us again
        touched: list[Answer] = []
        while self._inbox:
            self._walk(self._inbox.popleft(), touched)
        for answer in touched:
            answer.is_touched = False
            try:
                answer.flush()
            except Exception:
                self._fail_one(answer)

    def _walk(self, output: StepOutput, touched: list[Answer]) -> None:
        logprobs, prompt_logprobs = output.logprobs, output.prompt_logprobs
        targets = self._targets
        for sequence_id, token_id, reason in zip(
            output.sequence_ids, output.token_ids, output.finish_reasons, strict=True
        ):
            target = targets.get(sequence_id)
            if target is None:  # aborted, or ended by a stop string a moment ago
                continue
            choice, answer = target
            if reason is not None and reason in EARLY_ENDS:
                self._end_early(answer, reason)
                continue
            try:
                if prompt_logprobs and sequence_id in prompt_logprobs:
                    answer.generation.prompt_of(choice).logprobs = prompt_logprobs[sequence_id]
                choice.push(token_id, reason, logprobs.get(sequence_id) if logprobs else None)
            except Exception:
                self._fail_one(answer)
                continue
            if not answer.is_touched:
                answer.is_touched = True
                touched.append(answer)
            if choice.finish_reason is not None:
                choice.ended_ns = output.time_ns
                del targets[sequence_id]
                answer.num_unfinished -= 1
                if reason is None:
                    self.engine.finish_sequence(sequence_id)

    def _end_early(self, answer: Answer, reason: FinishReason) -> None:
        """The engine itself gave a request up: a fault, or its own shutdown."""
        if reason is FinishReason.ABORT:
            error = APIError(503, "the server is shutting down", code="shutting_down")
        elif answer.generation.grammar is not None:
            error = invalid_schema(
                answer.generation.grammar.param, "following it through this answer takes too much work"
            )
        else:
            error = internal_error(answer.generation.response_id)
        self.release(answer)
        answer.fail(error)

    def _fail_one(self, answer: Answer) -> None:
        """A bug met while an answer was built must not reach the others."""
        response_id = answer.generation.response_id
        logger.exception("delivering %s failed", response_id)
        self.release(answer)
        answer.fail(internal_error(response_id))

    def _fail_all(self) -> None:
        self.abort(None, APIError(503, "the engine has died", code="engine_dead"))
