"""What the server holds of the engine: the whole contract between the front end and the engine thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from engine.request import FinishReason, Request, StepOutput

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.record import EngineCounters, RecentRequests
    from model.config import ModelConfig


class EngineUnavailableError(RuntimeError):
    """The engine takes no requests: it is dead, draining or not up yet. `code` is the API's error slug."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class QueueFullError(RuntimeError):
    """As many requests wait as `--max-queue` allows; try again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PromptTooLongError(ValueError):
    """The prompt cannot fit the context or the KV pool, now or ever."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges. A consistent snapshot is not promised; each number is right when it is read."""

    num_running: int
    num_waiting: int
    kv_usage: float  # 0..1, blocks in use by sequences; blocks that are only cached count as free
    num_blocks: int
    num_blocks_used: int
    num_deferred: int = 0  # of those waiting: for a sequence of their own request that computes the prompt


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """Whether the engine takes requests and steps, and why not."""

    healthy: bool
    reason: str  # "ok", "engine_dead", "engine_stalled", "shutting_down"
    detail: str = ""


class EngineHandle(Protocol):
    """Every method may be called from any thread and returns at once."""

    engine_config: EngineConfig
    model_config: ModelConfig
    max_model_len: int  # resolved: the model's limit, the flag and the KV pool considered
    eos_token_ids: frozenset[int]

    @property
    def counters(self) -> EngineCounters: ...

    @property
    def recent_requests(self) -> RecentRequests: ...

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises `QueueFullError`, `EngineUnavailableError`, `PromptTooLongError`, or `ParameterError` for a
        token that the model does not have; the request then never was.
        From here on each of its sequences ends with exactly one finish reason in some `StepOutput`, unless
        the front end aborts or finishes it first.
        """
        ...

    def abort(self, request_id: str) -> None:
        """Drop a request wherever it is; nothing more is published for it. Unknown ids are ignored."""
        ...

    def finish_sequence(self, sequence_id: int, reason: FinishReason = FinishReason.STOP) -> None:
        """End one sequence for what its text says (a stop string). Nothing more is published for it."""
        ...

    def forget_prefixes(self) -> Future[int]:
        """Empty the prefix cache; the number of blocks forgotten. Never set by an engine that has ended."""
        ...

    def subscribe(
        self, on_step: Callable[[StepOutput], None], on_death: Callable[[BaseException], None]
    ) -> None:
        """Both must only hand the data over. `on_step` is called on the engine thread, `on_death` on any."""
        ...

    def stats(self) -> EngineStats:
        """What runs and waits at this moment, and how full the KV pool is."""
        ...

    def block_states(self) -> np.ndarray:
        """The `engine.block_manager.BlockState` of each KV block, uint8 [num_blocks]."""
        ...

    def health(self) -> EngineHealth:
        """Healthy until it dies, stalls or is told to drain."""
        ...

    def drain(self) -> None:
        """Take no more requests; those accepted go on. `submit` raises `EngineUnavailableError`."""
        ...

    def shutdown(self) -> None:
        """Stop the engine thread; requests still in it end with an abort. Blocks until it has stopped."""
        ...
