"""Computes one planned step: enqueue the forward pass and the sampling, read the tokens later."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch

from engine.config import SchedulerConfig
from engine.plan import ScheduledSequence, StepPlan
from engine.request import TokenLogprobs
from engine.runner.inputs import InputBuilder
from engine.runner.logprobs import LogprobTensors, concatenate, gather_logprobs, slices
from engine.runner.rows import Rows
from engine.runner.sampler import Sampled, Sampler
from kernels.attention.interface import AttentionBackend
from model.decoder import Decoder


@dataclass(slots=True)
class StepResult:
    """What a step computed, on the host."""

    token_ids: list[int]  # in the order of plan.sampled
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # by sequence id
    # By sequence id: the position of the first entry, and one entry for each prompt token scored by the step.
    prompt_logprobs: dict[int, tuple[int, list[TokenLogprobs]]] = field(default_factory=dict)


class Launch(Protocol):
    """A step that runs; `collect` waits for its results."""

    def collect(self) -> StepResult: ...


class Runner(Protocol):
    """What the engine loop needs of a model runner."""

    def launch(self, plan: StepPlan) -> Launch:
        """Enqueue a step. Never waits for the device."""
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
        self._is_cuda = shape.device.type == "cuda"

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> StepLaunch:
        inputs = self._inputs.build(plan)
        attention_plan = self._attention.plan(inputs.attention)
        hidden = self._decoder(inputs.token_ids, inputs.positions, attention_plan)
        sampled_from = plan.sampled
        sampled = None
        if sampled_from:
            logits = self._decoder.logits(hidden[inputs.sampled_tokens])
            sampled = self._sampler.sample(logits, sampled_from)
        prompt_logprobs = self._prompt_logprobs(plan, hidden)
        return StepLaunch(sampled_from, sampled, prompt_logprobs, self._is_cuda)

    def _prompt_logprobs(self, plan: StepPlan, hidden: torch.Tensor) -> list[_PromptScores]:
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
            scores.append(_PromptScores(sequence.sequence_id, chunk.start + 1, num_top, tensors))
        return scores

    def _score(self, hidden: torch.Tensor, targets: list[int], num_top: int) -> LogprobTensors:
        next_tokens = torch.tensor(targets, dtype=torch.int64, device=hidden.device)
        parts = [
            gather_logprobs(self._decoder.logits(hidden[rows]), next_tokens[rows], num_top)
            for rows in slices(len(targets))
        ]
        return concatenate(parts)


@dataclass(slots=True)
class _PromptScores:
    sequence_id: int
    first_position: int
    num_top: int
    tensors: LogprobTensors


class StepLaunch:
    """Holds a running step's device results and the event after which their host copies are there."""

    def __init__(
        self,
        sampled_from: list[ScheduledSequence],
        sampled: Sampled | None,
        prompt_scores: list[_PromptScores],
        is_cuda: bool,
    ) -> None:
        self._sampled_from = sampled_from
        self._sampled = sampled
        self._prompt_scores = prompt_scores
        self._event: torch.cuda.Event | None = None
        if is_cuda:
            self._copy_to_host()

    def _copy_to_host(self) -> None:
        if self._sampled is not None:
            self._sampled.token_ids = self._sampled.token_ids.to("cpu", non_blocking=True)
            if self._sampled.logprobs is not None:
                self._sampled.logprobs = self._sampled.logprobs.to_host()
        for scores in self._prompt_scores:
            scores.tensors = scores.tensors.to_host()
        self._event = torch.cuda.Event()
        self._event.record()

    def collect(self) -> StepResult:
        if self._event is not None:
            self._event.synchronize()
        result = StepResult(token_ids=[])
        sampled = self._sampled
        if sampled is not None:
            result.token_ids = sampled.token_ids.tolist()
            if sampled.logprobs is not None:
                result.logprobs = self._sampled_logprobs(sampled, sampled.logprobs)
        for scores in self._prompt_scores:
            entries = scores.tensors.to_lists([scores.num_top] * len(scores.tensors.chosen))
            result.prompt_logprobs[scores.sequence_id] = (scores.first_position, entries)
        return result

    def _sampled_logprobs(self, sampled: Sampled, tensors: LogprobTensors) -> dict[int, TokenLogprobs]:
        sequences = [self._sampled_from[i].sequence for i in sampled.logprobs_of]
        entries = tensors.to_lists([sequence.params.logprobs or 0 for sequence in sequences])
        return {sequence.sequence_id: entry for sequence, entry in zip(sequences, entries, strict=True)}
