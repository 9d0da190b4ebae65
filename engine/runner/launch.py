"""What the engine loop sees of a step: it is launched, and its results are collected later."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from engine.plan import StepPlan
from engine.request import TokenLogprobs


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

    def collect(self) -> StepResult:
        """Wait for the results; once, and after `resume` if it awaited tokens."""
        ...


class Runner(Protocol):
    """What the engine loop needs of a model runner.

    `ModelRunner` computes eagerly, `GraphModelRunner` by CUDA graphs, and `ParallelRunner` is rank 0's, which
    has one of them and tells the other ranks.
    """

    def launch(self, plan: StepPlan) -> Launch:
        """Enqueue a step. Never waits for the device."""
        ...

    @property
    def padding(self) -> dict[str, Any]:
        """What the rows of a step are rounded up to, for those who read its times in a step log."""
        ...
