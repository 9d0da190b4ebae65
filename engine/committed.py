"""What came of one step, for the front end, the record and the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from engine.request import NO_TOKEN, FinishReason
from engine.sequence import Sequence

Committed: TypeAlias = tuple[Sequence, int, FinishReason | None]
"""What a step brought one sequence: its token (NO_TOKEN if it ended without one), and why it ended, if so."""


@dataclass(slots=True)
class CommittedStep:
    """What a step brought: `Committed`, in columns. The first `num_decodes` have been decoded."""

    sequences: list[Sequence] = field(default_factory=list)
    sequence_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reasons: list[FinishReason | None] = field(default_factory=list)
    num_decodes: int = 0
    ended: list[tuple[Sequence, FinishReason]] = field(default_factory=list)  # those with a reason, again

    @property
    def num_tokens(self) -> int:
        """How many new tokens there are."""
        return len(self.token_ids) - self.token_ids[self.num_decodes :].count(NO_TOKEN)

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[Committed]:
        return zip(self.sequences, self.token_ids, self.finish_reasons, strict=True)

    def add(self, sequence: Sequence, token_id: int) -> None:
        """One more that has not been decoded: `token_id` is NO_TOKEN if it ended without a token."""
        self.sequences.append(sequence)
        self.sequence_ids.append(sequence.sequence_id)
        self.token_ids.append(token_id)
        self.finish_reasons.append(None)

    def remove(self, sequence: Sequence) -> None:
        """Of those that have been decoded."""
        self.num_decodes -= 1
        index = self.sequences.index(sequence)
        for column in (self.sequences, self.sequence_ids, self.token_ids, self.finish_reasons):
            del column[index]

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """One of these has ended."""
        self.finish_reasons[self.sequences.index(sequence)] = reason
        self.ended.append((sequence, reason))
