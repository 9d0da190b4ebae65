"""An `EngineHandle` without a model: a thread that publishes scripted tokens, one a sequence and step."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from engine.block_manager import BlockState
from engine.config import EngineConfig
from engine.handle import (
    EngineHealth,
    EngineStats,
    EngineUnavailableError,
    PromptTooLongError,
    QueueFullError,
)
from engine.record import EngineCounters, RecentRequests
from engine.request import NO_TOKEN, FinishReason, Request, StepOutput, TokenLogprobs
from model.config import ModelConfig

Script = Callable[[Request, int], Sequence[int]]
"""Request and index of the choice -> the tokens of that choice, with an EOS or without; repeated for ever."""

PROMPT_LOGPROB = -0.25
NUM_CACHED_BLOCKS = 3  # that it claims to forget


@dataclass
class FakeSequence:
    request: Request
    index: int
    tokens: Iterator[int]
    num_generated: int = 0


@dataclass
class FakeEngine:
    """Starts at once. While `paused` it accepts requests and publishes nothing."""

    script: Script
    vocab_size: int
    eos_token_ids: frozenset[int] = frozenset()
    max_model_len: int = 512
    block_size: int = 16
    max_queue: int = 64
    max_prompt_tokens: int | None = None
    """As when the KV pool is smaller than the context."""
    step_s: float = 0.0005
    tokens_per_handoff: int = 1
    """Steps that are published back to back, as when the event loop has fallen behind."""
    submitted: list[Request] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    finished_by_text: list[int] = field(default_factory=list)
    paused: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.engine_config = EngineConfig(block_size=self.block_size, max_queue=self.max_queue)
        self.model_config = _model_config(self.vocab_size)
        self.counters = EngineCounters()
        self.recent_requests = RecentRequests()
        self._lock = threading.Lock()
        self._sequences: dict[int, FakeSequence] = {}
        self._on_step: list[Callable[[StepOutput], None]] = []
        self._on_death: list[Callable[[BaseException], None]] = []
        self.step = 0
        self._stopped = threading.Event()
        self._health = EngineHealth(True, "ok")
        self._failing: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="fake-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        if self._health.reason in ("engine_dead", "shutting_down"):
            raise EngineUnavailableError(self._health.reason, f"unavailable: {self._health.reason}")
        if self.max_prompt_tokens is not None and len(request.prompt_token_ids) > self.max_prompt_tokens:
            raise PromptTooLongError("the prompt does not fit the KV pool")
        with self._lock:
            if len(self._sequences) >= self.max_queue:
                raise QueueFullError("too many requests wait", 2.0)
            request.record.num_prompt_tokens = len(request.prompt_token_ids)
            self.submitted.append(request)
            self.recent_requests.add(request.record)
            for index, sequence_id in enumerate(request.sequence_ids):
                tokens = itertools.cycle(self.script(request, index))
                self._sequences[sequence_id] = FakeSequence(request, index, tokens)

    def abort(self, request_id: str) -> None:
        with self._lock:
            self.aborted.append(request_id)
            for sequence_id, sequence in list(self._sequences.items()):
                if sequence.request.request_id == request_id:
                    del self._sequences[sequence_id]

    def finish_sequence(self, sequence_id: int, reason: FinishReason = FinishReason.STOP) -> None:
        with self._lock:
            self.finished_by_text.append(sequence_id)
            self._sequences.pop(sequence_id, None)

    def forget_prefixes(self) -> Future[int]:
        done: Future[int] = Future()
        if not self._stopped.is_set():
            done.set_result(NUM_CACHED_BLOCKS)
        return done

    def subscribe(
        self, on_step: Callable[[StepOutput], None], on_death: Callable[[BaseException], None]
    ) -> None:
        self._on_step.append(on_step)
        self._on_death.append(on_death)

    def stats(self) -> EngineStats:
        running = len(self._sequences)
        return EngineStats(running, 0, running / 100, 100, running)

    def block_states(self) -> np.ndarray:
        """A block for each sequence, behind as many cached ones."""
        running = len(self._sequences)
        states = np.full(100, BlockState.EMPTY, np.uint8)
        states[:running], states[running : 2 * running] = BlockState.CACHED, BlockState.USED
        return states

    def health(self) -> EngineHealth:
        return self._health

    def drain(self) -> None:
        self._health = EngineHealth(False, "shutting_down")

    def shutdown(self) -> None:
        self.drain()
        self._stopped.set()
        self._thread.join()
        self._publish_for_all(FinishReason.ABORT)

    def stall(self) -> None:
        """Like a step that hangs; `recover` ends it."""
        self.paused.set()
        self._health = EngineHealth(False, "engine_stalled", "no step for 30.5 s")

    def recover(self) -> None:
        self._health = EngineHealth(True, "ok")
        self.paused.clear()

    def die(self) -> None:
        """As when a step raises."""
        self._health = EngineHealth(False, "engine_dead", "RuntimeError: test")
        self._stopped.set()
        self._thread.join()
        for tell in self._on_death:
            tell(RuntimeError("test"))

    def fail_requests(self) -> None:
        """The engine gives up on what is in it now, and goes on."""
        self._publish_for_all(FinishReason.ERROR)

    @property
    def num_running(self) -> int:
        return len(self._sequences)

    def _run(self) -> None:
        while not self._stopped.wait(self.step_s):
            if not self.paused.is_set():
                outputs = [self._make_step() for _ in range(self.tokens_per_handoff)]
                for output in outputs:
                    self._publish(output)

    def _publish(self, output: StepOutput) -> None:
        if output.sequence_ids:
            for on_step in self._on_step:
                on_step(output)

    def _publish_for_all(self, reason: FinishReason) -> None:
        output = StepOutput(self.step, time.monotonic_ns())
        with self._lock:
            for sequence_id in self._sequences:
                output.add(sequence_id, NO_TOKEN, reason)
            self._sequences.clear()
        self._publish(output)

    def _make_step(self) -> StepOutput:
        self.step += 1
        output = StepOutput(self.step, time.monotonic_ns())
        with self._lock:
            for sequence_id, sequence in list(self._sequences.items()):
                self._advance(sequence_id, sequence, output)
        return output

    def _advance(self, sequence_id: int, sequence: FakeSequence, output: StepOutput) -> None:
        params = sequence.request.params
        if params.prompt_logprobs is not None and sequence.num_generated == 0:
            output.prompt_logprobs[sequence_id] = self._prompt_logprobs(sequence.request)
        if params.max_tokens == 0:
            token_id, reason = NO_TOKEN, FinishReason.LENGTH
        else:
            token_id = next(sequence.tokens)
            sequence.num_generated += 1
            reason = self._finish_reason(sequence, token_id)
            if params.logprobs is not None:
                output.logprobs[sequence_id] = token_logprobs(token_id, params.logprobs, self.vocab_size)
        output.add(sequence_id, token_id, reason)
        if reason is not None:
            del self._sequences[sequence_id]

    def _finish_reason(self, sequence: FakeSequence, token_id: int) -> FinishReason | None:
        params, num_generated = sequence.request.params, sequence.num_generated
        eos_token_ids = self.eos_token_ids if sequence.request.ends_at_eos else frozenset()
        ends = eos_token_ids.union(params.stop_token_ids)
        if token_id in ends and num_generated > params.min_tokens:
            return FinishReason.STOP
        room = self.max_model_len - len(sequence.request.prompt_token_ids)
        limit = room if params.max_tokens is None else min(params.max_tokens, room)
        return FinishReason.LENGTH if num_generated >= limit else None

    def _prompt_logprobs(self, request: Request) -> list[TokenLogprobs | None]:
        count = request.params.prompt_logprobs or 0
        following = [
            TokenLogprobs(PROMPT_LOGPROB, *_top(token_id, PROMPT_LOGPROB, count, self.vocab_size))
            for token_id in request.prompt_token_ids[1:].tolist()
        ]
        return [None, *following]


def token_logprobs(token_id: int, count: int, vocab_size: int) -> TokenLogprobs:
    """A function of the token. Odd ids have an impossible runner-up, to see that -inf is clamped."""
    logprob = -0.5 - token_id / 1000
    return TokenLogprobs(logprob, *_top(token_id, logprob, count, vocab_size))


def _top(token_id: int, logprob: float, count: int, vocab_size: int) -> tuple[list[int], list[float]]:
    ids = [(token_id + i) % vocab_size for i in range(count)]
    runner_up = float("-inf") if token_id % 2 else logprob - 1
    return ids, [logprob if i == 0 else runner_up for i in range(count)]


def _model_config(vocab_size: int) -> ModelConfig:
    return ModelConfig(
        architecture="FakeForCausalLM",
        vocab_size=vocab_size,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
    )
