"""Engines over tiny or embedded models, driven turn by turn in the test's own thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.block_manager import hash_blocks
from engine.config import SchedulerConfig
from engine.constraint import Constraint
from engine.inbox import Abort, Finish, Inbox, Submit
from engine.loop import EngineLoop
from engine.record import EngineCounters, RecentRequests, RequestRecord
from engine.recorder import Recorder
from engine.request import NO_TOKEN, FinishReason, Request, StepOutput, TokenLogprobs
from engine.runner.capture import Capture
from engine.runner.graph_runner import GraphModelRunner
from engine.runner.launch import Runner
from engine.runner.model_runner import ModelRunner
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from model.decoder import Decoder
from tests.support.decoders import build_decoder


@dataclass
class Result:
    """What came back for one sequence."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None


class SteppedEngine:
    """The real loop, scheduler, runner and sampler; `turn` by hand, invariants checked after each turn."""

    def __init__(
        self,
        decoder: Decoder,
        num_blocks: int,
        *,
        depth: int = 1,
        eos_token_ids: Iterable[int] = (),
        capture: Capture | None = None,
        make_runner: Callable[[SchedulerConfig, frozenset[int]], Runner] | None = None,
        **limits: Any,
    ) -> None:
        block_size = decoder.attention.shape.block_size
        settings = {
            "max_num_seqs": 32,
            "max_num_batched_tokens": 64,
            "max_model_len": min(num_blocks * block_size, decoder.config.max_position_embeddings),
            **limits,
        }
        self.config = SchedulerConfig(block_size=block_size, num_blocks=num_blocks, **settings)
        eos = frozenset(eos_token_ids)
        self.scheduler = Scheduler(self.config, eos)
        self.counters = EngineCounters()
        self.inbox = Inbox()
        runner: Runner = ModelRunner(decoder, decoder.attention, self.config, eos, seed=0)
        if make_runner is not None:
            runner = make_runner(self.config, eos)
        elif capture is not None:
            runner = GraphModelRunner(decoder, decoder.attention, self.config, eos, 0, capture)
        recorder = Recorder(self.counters, RecentRequests())
        self.loop = EngineLoop(
            self.scheduler, runner, self.inbox, recorder, depth=depth, check_invariants=True
        )
        self.loop.on_step.append(self._take)
        self.results: dict[int, Result] = {}
        self._num_requests = 0

    def submit(
        self,
        prompt: list[int],
        params: SamplingParams,
        n: int = 1,
        salt: bytes = b"",
        priority: int = 0,
        constraint: Constraint | None = None,
    ) -> Request:
        self._num_requests += 1
        request_id = f"r{self._num_requests}"
        prompt_ids = np.array(prompt, dtype=np.int32)
        hashes = hash_blocks(prompt_ids, self.config.block_size, salt)
        request = Request(
            request_id, prompt_ids, params, hashes, RequestRecord(request_id), n, priority, salt, constraint
        )
        for sequence_id in request.sequence_ids:
            self.results[sequence_id] = Result()
        self.inbox.put(Submit(request))
        return request

    def abort(self, request: Request) -> None:
        self.inbox.put(Abort(request.request_id))

    def finish(self, sequence_id: int) -> None:
        self.inbox.put(Finish(sequence_id, FinishReason.STOP))

    def run(self, max_turns: int = 20_000) -> None:
        """Turn until nothing is left."""
        for _ in range(max_turns):
            self.loop.turn()
            if not self.busy:
                return
        raise AssertionError("the engine does not come to an end")

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.has_work or self.loop.num_in_flight or len(self.inbox))

    def generate(self, prompts: list[list[int]], params: SamplingParams) -> list[Result]:
        requests = [self.submit(prompt, params) for prompt in prompts]
        self.run()
        return [self.results[request.sequence_ids[0]] for request in requests]

    def _take(self, output: StepOutput) -> None:
        columns = zip(output.sequence_ids, output.token_ids, output.finish_reasons, strict=True)
        for sequence_id, token_id, reason in columns:
            result = self.results[sequence_id]
            assert result.finish_reason is None, "a token after the end"
            if token_id != NO_TOKEN:
                result.token_ids.append(token_id)
            result.finish_reason = reason
        for sequence_id, logprobs in output.logprobs.items():
            self.results[sequence_id].logprobs.append(logprobs)
        for sequence_id, scores in output.prompt_logprobs.items():
            assert self.results[sequence_id].prompt_logprobs is None
            self.results[sequence_id].prompt_logprobs = scores


def tiny_engine(
    hf_model: Any, *, block_size: int = 4, num_blocks: int = 256, **options: Any
) -> SteppedEngine:
    decoder = build_decoder(hf_model, block_size=block_size, num_blocks=num_blocks)
    return SteppedEngine(decoder, num_blocks, **options)
