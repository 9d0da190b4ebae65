"""A step that runs on the device, and what of it is on its way to the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.plan import SampledSequences
from engine.runner.launch import StepResult
from engine.runner.logprobs import LogprobTensors
from engine.runner.sampler import Sampled
from engine.runner.step_buffers import StepBuffers


@dataclass(slots=True)
class PromptScoreTensors:
    """Scores of consecutive prompt tokens of one sequence, from `first_position` on."""

    sequence_id: int
    first_position: int
    num_top: int
    tensors: LogprobTensors


class StepLaunch:
    """The results of a running step, on their way to the host; they are there when its buffers have ended.

    What is added is sent at once: its device memory may be written again by the very next launch.
    """

    def __init__(self, buffers: StepBuffers, give_back: Callable[[StepBuffers], None]) -> None:
        """`give_back` gets the buffers when the step has been collected."""
        self._unsampled: list[tuple[SampledSequences, Callable[[], Sampled]]] = []
        self._sampled: list[tuple[SampledSequences, Sampled]] = []
        self._prompt_scores: list[PromptScoreTensors] = []
        self.buffers = buffers
        self._give_back = give_back
        buffers.begin()

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
        self.buffers.receive(sampled.token_ids, len(scheduled))
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
            self.buffers.end()

    @property
    def has_ended(self) -> bool:
        return self.buffers.has_ended

    def discard(self) -> None:
        """Instead of `collect`, where nobody wants the results of a step that has ended."""
        self._give_back(self.buffers)

    def collect(self) -> StepResult:
        token_ids, device_ns = self.buffers.wait()
        self._give_back(self.buffers)
        result = StepResult(token_ids, device_ns=device_ns)
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
