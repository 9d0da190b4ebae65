"""Rank 0's runner: tells the other ranks of each step and computes its own part."""

from __future__ import annotations

from engine.parallel.ranks import Ranks
from engine.parallel.shared_masks import SentMasks
from engine.parallel.step_message import StepEncoder
from engine.parallel.world import leave
from engine.plan import StepPlan
from engine.runner.model_runner import Launch, ModelRunner

_VERDICT_S = 1.0


class ParallelRunner:
    """Every rank computes every step and samples alike, so only the plan travels, and no token comes back."""

    def __init__(self, runner: ModelRunner, ranks: Ranks, encoder: StepEncoder) -> None:
        self._runner = runner
        self.ranks = ranks
        self._encoder = encoder
        runner.wrap_masks(lambda own: SentMasks(own, ranks.send))

    def launch(self, plan: StepPlan) -> Launch:
        """Raises `RankError` if a rank is missing."""
        self.ranks.send(self._encoder.encode(plan))
        try:
            return self._runner.launch(plan)
        except RuntimeError:
            # A collective that fails says little of the rank that died under it.
            self.ranks.raise_failure(wait_s=_VERDICT_S)
            raise

    def stop(self) -> None:
        """End the other ranks."""
        self.ranks.stop()
        leave()
