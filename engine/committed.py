"""What came of one step, for the front end, the record and the simulator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from engine.plan import DecodeGroup
from engine.request import NO_TOKEN, FinishReason
from engine.sequence import Sequence

Committed: TypeAlias = tuple[Sequence, int, FinishReason | None]
"""What a step brought one sequence: its token (NO_TOKEN if it ended without one), and why it ended, if so."""


@dataclass(slots=True)
class CommittedStep:
    """What a step brought: `Committed`, in columns. First come those that `decoded`.

    While the same ones decode step by step, `decoded` is the same list: nobody may change it.
    """

    sequences: list[Sequence] = field(default_factory=list)
    sequence_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reasons: list[FinishReason | None] = field(default_factory=list)
    decoded: list[Sequence] = field(default_factory=list)
    ended: list[tuple[Sequence, FinishReason]] = field(default_factory=list)  # those with a reason, again

    @classmethod
    def of_decodes(
        cls, group: DecodeGroup, token_ids: np.ndarray, ended: dict[int, FinishReason], dropped: list[int]
    ) -> CommittedStep:
        """`token_ids` [N] are what the group got; `ended` and `dropped`, who get nothing, are indices in it.

        Columns may be the group's own: nobody may change them.
        """
        reasons: list[FinishReason | None] = [None] * len(group)
        for index, reason in ended.items():
            reasons[index] = reason
        sequences, ids, tokens = group.sequences, group.sequence_ids, token_ids.tolist()
        if dropped:
            sequences, ids = sequences.copy(), ids.copy()
            for index in sorted(dropped, reverse=True):
                del sequences[index], ids[index], tokens[index], reasons[index]
        those_ended = [(group.sequences[index], reason) for index, reason in ended.items()]
        return cls(sequences, ids, tokens, reasons, sequences, those_ended)

    @classmethod
    def of_failed(cls, sequences: Iterable[Sequence]) -> CommittedStep:
        """They had to be given up."""
        failed = cls()
        for sequence in sequences:
            failed.add(sequence, NO_TOKEN, FinishReason.ERROR)
        return failed

    @property
    def num_decodes(self) -> int:
        return len(self.decoded)

    @property
    def num_tokens(self) -> int:
        """How many new tokens there are."""
        return len(self.token_ids) - self.token_ids[self.num_decodes :].count(NO_TOKEN)

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[Committed]:
        return zip(self.sequences, self.token_ids, self.finish_reasons, strict=True)

    def add(self, sequence: Sequence, token_id: int, reason: FinishReason | None) -> None:
        """One more. Only of a step without decodes: use `followed_by`."""
        self.sequences.append(sequence)
        self.sequence_ids.append(sequence.sequence_id)
        self.token_ids.append(token_id)
        self.finish_reasons.append(reason)
        if reason is not None:
            self.ended.append((sequence, reason))

    def followed_by(self, others: CommittedStep) -> CommittedStep:
        """These and others of the same step, which have not been decoded."""
        return CommittedStep(
            self.sequences + others.sequences,
            self.sequence_ids + others.sequence_ids,
            self.token_ids + others.token_ids,
            self.finish_reasons + others.finish_reasons,
            self.decoded,
            self.ended + others.ended,
        )
