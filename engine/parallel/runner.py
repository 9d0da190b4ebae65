"""Rank 0's runner: tells the other ranks of each step and computes its own part."""

from __future__ import annotations

from typing import Any

from engine.parallel.ranks import Ranks
from engine.parallel.shared_masks import SentMasks
from engine.parallel.step_message import StepEncoder
from engine.parallel.world import leave
from engine.plan import StepPlan
from engine.runner.launch import Launch
from engine.runner.model_runner import ModelRunner


class ParallelRunner:
    """Every rank computes every step and samples alike, so only the plan travels, and no token comes back."""

    def __init__(self, runner: ModelRunner, ranks: Ranks, encoder: StepEncoder) -> None:
        self._runner = runner
        self.ranks = ranks
        self._encoder = encoder
        runner.wrap_masks(lambda own: SentMasks(own, ranks.send))

    @property
    def padding(self) -> dict[str, Any]:
        return self._runner.padding

    def launch(self, plan: StepPlan) -> Launch:
        """Raises `RankError` if a rank is missing."""
        self.ranks.send(self._encoder.encode(plan))
        try:
            return self._runner.launch(plan)
        except Exception as error:
            cause = self.ranks.explain(error)
            if cause is error:
                raise
            raise cause from error

    def stop(self) -> None:
        """End the other ranks, once all have computed the steps that were launched."""
        self._runner.close()  # first: NCCL gives up no communicator that a graph still holds
        self.ranks.stop()
        leave()
