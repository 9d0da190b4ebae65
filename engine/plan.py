"""What one step computes, and what came of it. Data only: the runner reads it, the simulator times it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from engine.request import FinishReason
from engine.sequence import Sequence


class ScheduledSequence(NamedTuple):
    """Compute `num_tokens` tokens of `sequence` from position `start`; then sample one token if `samples`.

    A decode is num_tokens == 1 of a sequence whose other tokens are all cached; its input token may still be
    pending on the host, in which case the runner takes it from the row's last sampled token on the device.
    `row` is the sequence's row when the step was planned (a later preemption may free it).
    """

    sequence: Sequence
    row: int
    start: int
    num_tokens: int
    samples: bool


@dataclass(slots=True)
class StepPlan:
    step: int
    decodes: list[ScheduledSequence] = field(default_factory=list)
    chunks: list[ScheduledSequence] = field(default_factory=list)
    num_preempted: int = 0

    @property
    def num_prompt_tokens(self) -> int:
        """Those that its chunks compute."""
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + self.num_prompt_tokens

    @property
    def scheduled(self) -> list[ScheduledSequence]:
        """All that it computes, in the order of the flat batch."""
        return [*self.decodes, *self.chunks]

    @property
    def sampled(self) -> list[ScheduledSequence]:
        """Those that get a token from this step, in the order of the runner's result rows."""
        return self.decodes + [chunk for chunk in self.chunks if chunk.samples]


Committed: TypeAlias = tuple[Sequence, int, FinishReason | None]
"""What a step brought one sequence: its token (NO_TOKEN if it ended without one), and why it ended, if so."""
