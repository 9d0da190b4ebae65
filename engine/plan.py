"""What one step computes. Data only: the runner reads it, the simulator times it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from engine.sequence import Sequence, by_order


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


class DecodeGroup:
    """Sequences that decode together: one object for all steps in a row in which none joins or leaves.

    Decode steps are numbered. In step number n, member i feeds its token at position `origins[i] + n`.
    """

    def __init__(self, sequences: list[Sequence], sequence_ids: list[int], columns: np.ndarray) -> None:
        """None of them may be changed afterwards. `columns` [4, N] int64, for each member (`decode_columns`):
        row, origin, the number modulo the block size of the steps in which it begins a block, and the number
        of the step that it must not take, since it has its last token then.
        """
        self.sequences = sequences
        self.sequence_ids = sequence_ids
        self.columns = columns
        self.rows: np.ndarray = columns[0]
        self.origins: np.ndarray = columns[1]
        self._block_phases, self._ends = columns[2:]
        self._due_step = -1
        self._due: list[int] = []
        self._next_due_step = -1  # none is due from `_due_step` on until then

    def __len__(self) -> int:
        return len(self.sequences)

    def index_of(self, sequence: Sequence) -> int | None:
        """None if it is no member. Members have to be in order."""
        index = bisect_left(self.sequences, sequence.order, key=by_order)
        return index if index < len(self) and self.sequences[index] is sequence else None

    @cached_property
    def last_origin(self) -> int:
        """Of the member that is furthest on."""
        return int(self.origins.max())

    @cached_property
    def origins_sum(self) -> int:
        """Added up once for all steps of the group, which need the sum of their contexts."""
        return int(self.origins.sum())

    @cached_property
    def first_end(self) -> int:
        """The first step that some member must not take."""
        return int(self._ends.min())

    def due(self, step: int, block_size: int) -> list[int]:
        """Indices of the members that begin a block in that step, and of those that must not take it."""
        # Asked three times for one step: to plan it, to launch it, and to settle the one before.
        if self._due_step < step < self._next_due_step:
            return []
        if step != self._due_step:
            begins = self._block_phases == step % block_size
            self._due = (begins | (self._ends == step)).nonzero()[0].tolist()
            self._due_step = step
            self._next_due_step = step if self._due else step + self._num_quiet_steps(step, block_size)
        return self._due

    @cached_property
    def members_by_phase(self) -> dict[int, list[int]]:
        """Indices, by the number modulo the block size of the steps that begin a block, in ascending order.

        For who asks about many steps of the group.
        """
        members: dict[int, list[int]] = {phase: [] for phase in sorted(self._block_phases.tolist())}
        for index, phase in enumerate(self._block_phases.tolist()):
            members[phase].append(index)
        return members

    def _num_quiet_steps(self, step: int, block_size: int) -> int:
        """How many from that step on nobody is due in: few members are looked at in few steps."""
        until_block = (self._block_phases - step) % block_size
        return int(np.minimum(until_block, self._ends - step).min(initial=block_size))

    def that_begin_a_block(self, step: int, block_size: int) -> list[int]:
        """Indices of the members whose token of that step is the first of a block."""
        phase = step % block_size
        return [index for index in self.due(step, block_size) if self._block_phases[index] == phase]


def decode_columns(sequence: Sequence, step: int, block_size: int) -> tuple[int, int, int, int]:
    """A column of `DecodeGroup.columns`, for a sequence that decodes from that step on."""
    origin = sequence.num_cached_tokens - step
    return sequence.row, origin, -origin % block_size, sequence.max_length - 1 - origin


class Decodes:
    """The decodes of one step: a group, and the number of the decode step."""

    __slots__ = ("group", "step")

    def __init__(self, group: DecodeGroup, step: int) -> None:
        self.group = group
        self.step = step

    @property
    def starts(self) -> np.ndarray:
        """[N] int64: the position of each one's token."""
        starts: np.ndarray = self.group.origins + self.step
        return starts

    @property
    def longest_context(self) -> int:
        """Tokens that the one furthest on attends to."""
        return self.group.last_origin + self.step + 1

    @property
    def total_context(self) -> int:
        """Tokens that all together attend to."""
        return self.group.origins_sum + (self.step + 1) * len(self)

    def that_begin_a_block(self, block_size: int) -> list[ScheduledSequence]:
        """Those whose token is the first of a block, which they were given for this step."""
        return [self[index] for index in self.group.that_begin_a_block(self.step, block_size)]

    def __len__(self) -> int:
        return len(self.group.sequences)

    def __getitem__(self, index: int) -> ScheduledSequence:
        group = self.group
        start = int(group.origins[index]) + self.step
        return ScheduledSequence(group.sequences[index], int(group.rows[index]), start, 1, True)

    def __iter__(self) -> Iterator[ScheduledSequence]:
        columns = zip(self.group.sequences, self.group.rows.tolist(), self.starts.tolist(), strict=True)
        return (ScheduledSequence(sequence, row, start, 1, True) for sequence, row, start in columns)


class SampledSequences:
    """Those that get a token from a step, in the order of the runner's result rows: decodes, then chunks."""

    __slots__ = ("_chunks", "_decodes")

    def __init__(self, decodes: Decodes, chunks: list[ScheduledSequence]) -> None:
        self._decodes = decodes
        self._chunks = chunks

    @property
    def group(self) -> DecodeGroup | None:
        """Who they are, if all of them decode."""
        return None if self._chunks else self._decodes.group

    @property
    def rows(self) -> np.ndarray:
        """[R] int64"""
        rows = self._decodes.group.rows
        return np.append(rows, [chunk.row for chunk in self._chunks]) if self._chunks else rows

    @property
    def positions(self) -> np.ndarray:
        """[R] int64: where the tokens will stand that are sampled."""
        ends = [chunk.start + chunk.num_tokens for chunk in self._chunks]
        return np.append(self._decodes.starts + 1, np.array(ends, np.int64))

    def __len__(self) -> int:
        return len(self._decodes) + len(self._chunks)

    def __getitem__(self, index: int) -> ScheduledSequence:
        num_decodes = len(self._decodes)
        return self._decodes[index] if index < num_decodes else self._chunks[index - num_decodes]

    def __iter__(self) -> Iterator[ScheduledSequence]:
        yield from self._decodes
        yield from self._chunks


NO_DECODES = Decodes(DecodeGroup([], [], np.empty((4, 0), np.int64)), 0)


@dataclass(slots=True)
class StepPlan:
    """The decodes and the prompt chunks of one step, each sequence in one of them at most."""

    step: int
    decodes: Decodes = NO_DECODES
    chunks: list[ScheduledSequence] = field(default_factory=list)
    num_preempted: int = 0

    @property
    def num_prompt_tokens(self) -> int:
        """Those that its chunks compute."""
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def num_tokens(self) -> int:
        """All that it computes."""
        return len(self.decodes) + self.num_prompt_tokens

    @property
    def scores_prompts(self) -> bool:
        """Whether log-probabilities of prompt tokens are asked for, which need all their hidden rows."""
        return any(chunk.sequence.params.prompt_logprobs is not None for chunk in self.chunks)

    @property
    def scheduled(self) -> list[ScheduledSequence]:
        """All that it computes, in the order of the flat batch."""
        return [*self.decodes, *self.chunks]

    @property
    def sampled(self) -> SampledSequences:
        """Those that get a token from it."""
        return SampledSequences(self.decodes, [chunk for chunk in self.chunks if chunk.samples])
