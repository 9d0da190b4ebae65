"""Computes one planned step: enqueue the forward pass and the sampling, read the tokens later."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from engine.config import SchedulerConfig
from engine.plan import SampledSequences, StepPlan
from engine.request import TokenLogprobs
from engine.runner.inputs import InputBuilder
from engine.runner.logprobs import LogprobTensors, concatenate, gather_logprobs, slices
from engine.runner.rows import Rows
from engine.runner.sampler import Sampled, Sampler
from engine.runner.token_masks import MaskSource
from engine.runner.upload import upload
from kernels.attention.interface import AttentionBackend
from model.decoder import Decoder

_NO_TOKENS = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class StepResult:
    """What a step computed, on the host."""

    token_ids: np.ndarray  # [R] integers, in the order of plan.sampled
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # by sequence id
    # By sequence id: the position of the first entry, and one entry for each prompt token scored by the step.
    prompt_logprobs: dict[int, tuple[int, list[TokenLogprobs]]] = field(default_factory=dict)
    device_ns: int = 0  # from its beginning on the device to its end; of an eager step, its computation
    stuck: list[int] = field(default_factory=list)  # sequence ids whose constraint cannot be followed further


class Launch(Protocol):
    """A step that runs; `collect` waits for its results."""

    @property
    def awaits_tokens(self) -> bool:
        """Whether it samples for a constrained sequence: which tokens may come depends on all before.

        Its forward pass runs, but `resume` has to be called once all steps before are committed.
        """
        ...

    def resume(self) -> None:
        """Enqueue the sampling. Never waits for the device."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether `collect` would return at once. Asked of steps that do not await tokens."""
        ...

    def collect(self) -> StepResult: ...


class Runner(Protocol):
    """What the engine loop needs of a model runner."""

    def launch(self, plan: StepPlan) -> Launch:
        """Enqueue a step. Never waits for the device."""
        ...

    @property
    def padding(self) -> dict[str, Any]:
        """What the rows of a step are rounded up to, for those who read its times in a step log."""
        ...


class ModelRunner:
    """Runs plans on a decoder with a paged KV cache, eagerly, on one device and stream."""

    def __init__(
        self,
        decoder: Decoder,
        attention: AttentionBackend,
        config: SchedulerConfig,
        eos_token_ids: frozenset[int],
        seed: int,
    ) -> None:
        shape = attention.shape
        max_blocks = -(-config.max_model_len // config.block_size)
        self._decoder = decoder
        self._attention = attention
        self._rows = Rows(config.max_num_seqs, max_blocks, decoder.config.vocab_size, shape.device, seed)
        self._inputs = InputBuilder(self._rows, config.block_size)
        self._sampler = Sampler(self._rows, eos_token_ids)
        self._device = shape.device

    @property
    def padding(self) -> dict[str, Any]:
        return {}

    def wrap_masks(self, wrap: Callable[[MaskSource], MaskSource]) -> None:
        """Put something between the sampler and what tells it the tokens of constrained sequences."""
        self._sampler.masks = wrap(self._sampler.masks)

    def close(self) -> None:
        """Wait for the device to have computed what was launched. Nothing may be launched afterwards."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Launch:
        launch = StepLaunch(self._device)
        self._run(plan, launch)
        launch.close()
        return launch

    def _run(self, plan: StepPlan, launch: StepLaunch) -> None:
        """All rows of the plan in one forward pass; what comes of it is added to the launch."""
        inputs = self._inputs.build(plan)
        attention_plan = self._attention.plan(inputs.attention)
        wanted = None if plan.scores_prompts else inputs.last_tokens
        hidden = self._decoder(inputs.token_ids, inputs.positions, attention_plan, wanted)
        if plan.scores_prompts:
            launch.add_prompt_scores(self._prompt_logprobs(plan, hidden))
            hidden = hidden[inputs.last_tokens]
        scheduled = plan.sampled
        if scheduled:
            self._sample_rows(launch, self._decoder.logits(hidden), scheduled)

    def _sample_rows(self, launch: StepLaunch, logits: torch.Tensor, scheduled: SampledSequences) -> None:
        launch.sample(
            scheduled,
            lambda: self._sampler.sample(logits, scheduled),
            waits=self._sampler.is_constrained(scheduled),
        )

    def _prompt_logprobs(self, plan: StepPlan, hidden: torch.Tensor) -> list[PromptScoreTensors]:
        """Scores of the prompt tokens that follow each row of a chunk, for requests that asked."""
        scores = []
        end = len(plan.decodes)
        for chunk in plan.chunks:
            begin, end = end, end + chunk.num_tokens
            sequence = chunk.sequence
            num_top = sequence.params.prompt_logprobs
            num_scored = min(chunk.start + chunk.num_tokens, sequence.num_prompt_tokens - 1) - chunk.start
            scored_before = sequence.request.record.first_token_ns > 0  # a recompute after preemption
            if num_top is None or sequence.index > 0 or num_scored < 0 or scored_before:
                continue
            targets = sequence.token_ids[chunk.start + 1 : chunk.start + 1 + num_scored]
            tensors = self._score(hidden[begin : begin + num_scored], targets, num_top)
            scores.append(PromptScoreTensors(sequence.sequence_id, chunk.start + 1, num_top, tensors))
        return scores

    def _score(self, hidden: torch.Tensor, targets: list[int], num_top: int) -> LogprobTensors:
        next_tokens = upload(np.array(targets, dtype=np.int64), hidden.device)
        parts = [
            gather_logprobs(self._decoder.logits(hidden[rows]), next_tokens[rows], num_top)
            for rows in slices(len(targets))
        ]
        return concatenate(parts)


@dataclass(slots=True)
class PromptScoreTensors:
    """Scores of consecutive prompt tokens of one sequence, from `first_position` on."""

    sequence_id: int
    first_position: int
    num_top: int
    tensors: LogprobTensors


class _DeviceTimer:
    """Times what is enqueued on a stream between its making and `stop`; on a CPU, what is computed."""

    def __init__(self, device: torch.device) -> None:
        self._events: list[torch.cuda.Event] = []
        if device.type == "cuda":
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            self._events[0].record()
        self._began_ns = time.monotonic_ns()
        self._duration_ns = 0

    def stop(self) -> None:
        if self._events:
            self._events[1].record()
        else:
            self._duration_ns = time.monotonic_ns() - self._began_ns

    @property
    def has_stopped(self) -> bool:
        """Whether the device has come to `stop`."""
        return not self._events or self._events[1].query()

    def wait(self) -> int:
        """Until the device has come to `stop`; nanoseconds between both."""
        if not self._events:
            return self._duration_ns
        began, ended = self._events
        ended.synchronize()
        return int(began.elapsed_time(ended) * 1e6)


class StepLaunch:
    """The host copies of a running step's results, and the event after which they are there.

    What is added is sent at once: its device memory may be written again by the very next launch.
    """

    def __init__(self, device: torch.device) -> None:
        self._unsampled: list[tuple[SampledSequences, Callable[[], Sampled]]] = []
        self._sampled: list[tuple[SampledSequences, Sampled]] = []
        self._prompt_scores: list[PromptScoreTensors] = []
        self._timer = _DeviceTimer(device)

    @property
    def awaits_tokens(self) -> bool:
        return bool(self._unsampled)

    def sample(
        self, scheduled: SampledSequences, draw: Callable[[], Sampled], *, waits: bool = False
    ) -> None:
        """Draw for these sequences now; if that `waits`, or a draw before it does, then in `resume`.

        Calls come in the order of plan.sampled. The logits of a draw that waits must stay until then.
        """
        if waits or self._unsampled:
            self._unsampled.append((scheduled, draw))
        else:
            self._send(scheduled, draw())

    @torch.inference_mode()
    def resume(self) -> None:
        for scheduled, draw in self._unsampled:
            self._send(scheduled, draw())
        self._unsampled.clear()
        self.close()

    def _send(self, scheduled: SampledSequences, sampled: Sampled) -> None:
        sampled.token_ids = sampled.token_ids.to("cpu", non_blocking=True, copy=True)
        if sampled.logprobs is not None:
            sampled.logprobs = sampled.logprobs.to_host()
        self._sampled.append((scheduled, sampled))

    def add_prompt_scores(self, scores: list[PromptScoreTensors]) -> None:
        for entry in scores:
            entry.tensors = entry.tensors.to_host()
        self._prompt_scores += scores

    def close(self) -> None:
        """Nothing more will be added, other than by `resume`."""
        if not self._unsampled:
            self._timer.stop()

    @property
    def has_ended(self) -> bool:
        return self._timer.has_stopped

    def collect(self) -> StepResult:
        device_ns = self._timer.wait()
        token_ids = [sampled.token_ids.numpy() for _, sampled in self._sampled] or [_NO_TOKENS]
        together = token_ids[0] if len(token_ids) == 1 else np.concatenate(token_ids)
        result = StepResult(together, device_ns=device_ns)
        for scheduled, sampled in self._sampled:
            result.stuck += sampled.stuck
            if sampled.logprobs is not None:
                sequences = [scheduled[i].sequence for i in sampled.logprobs_of]
                entries = sampled.logprobs.to_lists([s.params.logprobs or 0 for s in sequences])
                result.logprobs.update(zip((s.sequence_id for s in sequences), entries, strict=True))
        for scores in self._prompt_scores:
            entries = scores.tensors.to_lists([scores.num_top] * len(scores.tensors.chosen))
            result.prompt_logprobs[scores.sequence_id] = (scores.first_position, entries)
        return result
