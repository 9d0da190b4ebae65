"""The running engine: a model, a scheduler and the thread that drives them, behind `EngineHandle`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from engine.config import EngineConfig
from engine.handle import (
    EngineHealth,
    EngineStats,
    EngineUnavailableError,
    QueueFullError,
)
from engine.inbox import Abort, Finish, ForgetPrefixes, Inbox, Stop, Submit
from engine.loop import EngineLoop
from engine.parallel.runner import ParallelRunner
from engine.record import EngineCounters, RecentRequests
from engine.recorder import Recorder
from engine.request import FinishReason, Request, StepOutput
from engine.runner.launch import Runner
from engine.sampling_params import ParameterError
from engine.scheduler import Scheduler
from model.config import ModelConfig

logger = logging.getLogger(__name__)

_RETRY_AFTER_S = 1.0


class Engine:
    """Implements `EngineHandle`. Made by `engine.build.build_engine`; `start` begins the engine thread."""

    def __init__(
        self,
        engine_config: EngineConfig,
        model_config: ModelConfig,
        scheduler: Scheduler,
        runner: Runner,
        recorder: Recorder,
        parallel: ParallelRunner | None = None,
    ) -> None:
        """`engine_config` has its defaults resolved. `parallel` is the runner if there are other ranks."""
        assert engine_config.pipeline_depth is not None
        self.engine_config = engine_config
        self.model_config = model_config
        self.max_model_len = scheduler.config.max_model_len
        self.eos_token_ids = scheduler.eos_token_ids
        self._scheduler = scheduler
        self._recorder = recorder
        self._inbox = Inbox()
        self._loop = EngineLoop(
            scheduler,
            runner,
            self._inbox,
            recorder,
            depth=engine_config.pipeline_depth,
            check_invariants=engine_config.check_invariants,
        )
        self._thread = threading.Thread(target=self._main, name="octavo-engine", daemon=True)
        self._on_death: list[Callable[[BaseException], None]] = []
        self._death: BaseException | None = None
        self._death_lock = threading.Lock()
        self._draining = False
        self._parallel = parallel
        if parallel is not None:
            parallel.ranks.on_failure = self._die

    @property
    def counters(self) -> EngineCounters:
        return self._recorder.counters

    @property
    def recent_requests(self) -> RecentRequests:
        return self._recorder.recent

    def start(self) -> None:
        self._loop.heartbeat_ns = time.monotonic_ns()
        self._thread.start()

    def submit(self, request: Request) -> None:
        if self._death is not None:
            raise EngineUnavailableError("engine_dead", f"the engine has died: {self._death}")
        if self._draining:
            raise EngineUnavailableError("shutting_down", "the server is shutting down")
        # Here, since on the engine thread these would be fatal.
        self._scheduler.check_request(request)
        self._check_token_ids(request)
        num_waiting = self._scheduler.num_waiting + self._inbox.num_submitted
        if num_waiting >= self.engine_config.max_queue:
            raise QueueFullError(f"{num_waiting} sequences are waiting already", _RETRY_AFTER_S)
        self._inbox.put(Submit(request))

    def _check_token_ids(self, request: Request) -> None:
        """A tokenizer may know tokens that its model has no embedding for."""
        ids, vocab_size = request.prompt_token_ids, self.model_config.vocab_size
        if ids.min() < 0 or ids.max() >= vocab_size:
            wrong = next(int(token_id) for token_id in ids if not 0 <= token_id < vocab_size)
            raise ParameterError("prompt", f"the model has no token {wrong}; it has {vocab_size}")

    def abort(self, request_id: str) -> None:
        self._inbox.put(Abort(request_id))

    def finish_sequence(self, sequence_id: int, reason: FinishReason = FinishReason.STOP) -> None:
        self._inbox.put(Finish(sequence_id, reason))

    def forget_prefixes(self) -> Future[int]:
        command = ForgetPrefixes(Future())
        self._inbox.put(command)
        return command.num_forgotten

    def subscribe(
        self, on_step: Callable[[StepOutput], None], on_death: Callable[[BaseException], None]
    ) -> None:
        self._loop.on_step.append(on_step)
        self._on_death.append(on_death)

    def stats(self) -> EngineStats:
        blocks = self._scheduler.block_manager
        return EngineStats(
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting + self._inbox.num_submitted,
            kv_usage=blocks.num_used / blocks.num_blocks,
            num_blocks=blocks.num_blocks,
            num_blocks_used=blocks.num_used,
            num_deferred=self._scheduler.num_deferred,
        )

    def block_states(self) -> np.ndarray:
        return self._scheduler.block_manager.states()

    def health(self) -> EngineHealth:
        if self._death is not None:
            return EngineHealth(False, "engine_dead", f"{type(self._death).__name__}: {self._death}")
        if self._draining:
            return EngineHealth(False, "shutting_down")
        silence_s = (time.monotonic_ns() - self._loop.heartbeat_ns) / 1e9
        if silence_s > self.engine_config.stall_timeout:
            return EngineHealth(False, "engine_stalled", f"no step for {silence_s:.1f} s")
        return EngineHealth(True, "ok")

    def drain(self) -> None:
        self._draining = True

    def shutdown(self) -> None:
        self._draining = True
        self._inbox.put(Stop())
        if self._thread.ident is not None:
            self._thread.join()
        if self._parallel is not None:
            self._parallel.stop()
        self._recorder.close()

    def _main(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:
            logger.debug("the engine thread ends", exc_info=error)
            self._die(error)

    def _die(self, error: BaseException) -> None:
        """Told by the engine thread or, should that be stuck, by whoever watches the other ranks."""
        with self._death_lock:
            if self._death is not None:
                return
            self._death = error
        logger.error("the engine has died", exc_info=error)
        for tell in self._on_death:
            tell(error)
