"""Gathers the log-probabilities of prompts that are computed in several chunks."""

from __future__ import annotations

from collections.abc import Mapping

from engine.plan import StepPlan
from engine.request import TokenLogprobs
from engine.sequence import SequenceStatus

_Scores = list[TokenLogprobs | None]


class PromptScores:
    """By sequence id, one entry for each prompt token; complete when the prompt's last chunk has run."""

    def __init__(self) -> None:
        self._partial: dict[int, _Scores] = {}

    def add(self, chunks: Mapping[int, tuple[int, list[TokenLogprobs]]], plan: StepPlan) -> None:
        """`chunks`: for each sequence of the plan that asked, the first position scored, and the scores."""
        if not chunks:
            return
        for chunk in plan.chunks:
            sequence = chunk.sequence
            ended = sequence.status is SequenceStatus.FINISHED  # while the step ran
            if sequence.sequence_id in chunks and not ended:
                first, scores = chunks[sequence.sequence_id]
                partial = self._partial.setdefault(sequence.sequence_id, [None] * sequence.num_prompt_tokens)
                partial[first : first + len(scores)] = scores

    def take(self, sequence_id: int) -> _Scores | None:
        """The whole prompt's, at the sequence's first token; None for those that did not ask."""
        return self._partial.pop(sequence_id, None) if self._partial else None

    def drop(self, sequence_id: int) -> None:
        self._partial.pop(sequence_id, None)
