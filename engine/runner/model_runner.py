"""Computes one planned step: enqueue the forward pass and the sampling, read the tokens later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from engine.config import SchedulerConfig
from engine.plan import SampledSequences, StepPlan
from engine.runner.inputs import InputBuilder
from engine.runner.logprobs import LogprobTensors, concatenate, gather_logprobs, slices
from engine.runner.rows import Rows
from engine.runner.sampler import Sampler
from engine.runner.step_buffers import StepBuffers, step_buffers
from engine.runner.step_launch import PromptScoreTensors, StepLaunch
from engine.runner.token_masks import MaskSource
from engine.runner.upload import upload
from kernels.attention.interface import AttentionBackend
from model.decoder import Decoder


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
        self._max_num_seqs = config.max_num_seqs
        self._idle_buffers: list[StepBuffers] = []

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
    def launch(self, plan: StepPlan) -> StepLaunch:
        launch = self._begin()
        self._run(plan, launch)
        launch.close()
        return launch

    def _begin(self) -> StepLaunch:
        """With the buffers of a step that has been collected, or new ones."""
        idle = self._idle_buffers
        buffers = idle.pop() if idle else step_buffers(self._device, self._max_num_seqs)
        return StepLaunch(buffers, idle.append)

    def _run(self, plan: StepPlan, launch: StepLaunch) -> None:
        """All rows of the plan in one forward pass; what comes of it is added to the launch."""
        inputs = self._inputs.build(plan, launch.buffers)
        attention_plan = self._attention.plan(inputs.attention)
        wanted = None if plan.scores_prompts else self._padded(inputs.last_rows)
        hidden = self._decoder(inputs.token_ids, inputs.positions, attention_plan, wanted)
        if plan.scores_prompts:
            launch.add_prompt_scores(self._prompt_logprobs(plan, hidden))
            hidden = hidden[inputs.last_rows]
        scheduled = plan.sampled
        if scheduled:
            self._sample_rows(launch, self._decoder.logits(hidden)[: len(scheduled)], scheduled)

    def _padded(self, last_rows: torch.Tensor) -> torch.Tensor:
        """Row indices [R] int64 to compute the last layer for, and behind them any others."""
        return last_rows

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
