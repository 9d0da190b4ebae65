"""The sequences that decode. A step moves all of them on by one token, at the same cost for few or many."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from engine.decode_steps import DecodeSteps
from engine.plan import NO_DECODES, DecodeGroup, Decodes, decode_columns
from engine.sequence import Sequence, SequenceStatus, by_order


class Decoding:
    """Running sequences whose prompts are done, in the policy's order; all take part in every decode step.

    So their counters are not touched: they tell them from the steps counted here, once for all.
    """

    def __init__(self, max_num_seqs: int, block_size: int) -> None:
        self.sequences: list[Sequence] = []
        self._sequence_ids: list[int] = []
        self._columns = np.empty((4, max_num_seqs), dtype=np.int64)
        self._block_size = block_size
        self._steps = DecodeSteps(max_num_seqs, num_kept_steps=block_size)
        self._group: DecodeGroup | None = NO_DECODES.group  # None when members have come or gone
        self._left: list[tuple[int, Sequence]] = []  # (takes no step from this one on, who)

    def join(self, sequence: Sequence) -> None:
        """It decodes from the next step on."""
        index, end = bisect_left(self.sequences, sequence.order, key=by_order), len(self.sequences)
        self._columns[:, index + 1 : end + 1] = self._columns[:, index:end]
        self._columns[:, index] = decode_columns(sequence, self._steps.num_planned, self._block_size)
        self.sequences.insert(index, sequence)
        self._sequence_ids.insert(index, sequence.sequence_id)
        sequence.begin_decoding(self._steps)
        self._group = None

    def leave(self, sequence: Sequence) -> None:
        """It takes no further steps; those under way are settled one by one, in `commit`."""
        index, end = bisect_left(self.sequences, sequence.order, key=by_order), len(self.sequences)
        self._columns[:, index : end - 1] = self._columns[:, index + 1 : end]
        del self.sequences[index], self._sequence_ids[index]
        sequence.end_decoding()
        self._left.append((self._steps.num_planned, sequence))
        self._group = None

    def due(self) -> list[Sequence]:
        """Those that need a block for the next step, and those whose last token is under way."""
        indices = self._current().due(self._steps.num_planned, self._block_size)
        return [self.sequences[index] for index in indices]

    def plan(self) -> Decodes:
        """The next step, of all."""
        if not self.sequences:
            return NO_DECODES
        step = self._steps.num_planned
        self._steps.num_planned += 1
        return Decodes(self._current(), step)

    def quiet_steps(self, in_flight: Decodes | None) -> tuple[int, Decodes]:
        """As `Scheduler.quiet_steps`, for who has blocks enough."""
        group, steps = self._current(), self._steps
        if not self.sequences or (in_flight is not None and in_flight.group is not group):
            return 0, NO_DECODES
        num_steps = group.first_end - max(steps.num_planned, steps.num_committed + 1)
        return max(num_steps, 0), Decodes(group, steps.num_planned)

    def pass_quiet_steps(self, most: int, token_id: int) -> tuple[int, list[Sequence], list[Sequence]]:
        """Up to the first of them with which a block begins or is full; who begins one, and whose is full."""
        group, steps, block_size = self._current(), self._steps, self._block_size
        members = group.members_by_phase
        phase = steps.num_planned % block_size
        until_block = (
            next((each for each in members if each >= phase), block_size + next(iter(members))) - phase
        )
        num_steps = min(max(steps.num_planned + until_block - steps.num_committed, 1), most)
        steps.pass_by(group.rows, token_id, num_steps)
        begin = members.get((steps.num_planned - 1) % block_size, ())
        filled = members.get(steps.num_committed % block_size, ())
        return num_steps, [group.sequences[i] for i in begin], [group.sequences[i] for i in filled]

    def last_planned(self) -> Decodes:
        """The newest step with decodes, if none of them has come or gone since."""
        return Decodes(self._current(), self._steps.num_planned - 1)

    def commit(self, decodes: Decodes, token_ids: np.ndarray) -> list[int]:
        """Give the sequences of a step their tokens; where in it those stand that have ended and get none.

        Whoever does not decode any more is given its token at once. All others have to be asked for theirs
        before it is forgotten, at the end of each block.
        """
        group = decodes.group
        self._steps.commit(group.rows, token_ids)
        self._left = [(end, sequence) for end, sequence in self._left if end > decodes.step]
        ended = []
        for _, sequence in self._left:
            index = group.index_of(sequence)
            if index is None:
                continue  # it had not joined yet
            if sequence.status is SequenceStatus.FINISHED:
                ended.append(index)
            else:
                sequence.settle(1, samples=True)
                sequence.token_ids.append(int(token_ids[index]))
        return ended

    def check(self) -> None:
        """Raise `AssertionError` unless the columns are those of the members."""
        num_planned, block_size = self._steps.num_planned, self._block_size
        columns = [decode_columns(sequence, num_planned, block_size) for sequence in self.sequences]
        assert self._current().columns.T.tolist() == [list(column) for column in columns]
        assert self._current().sequences == self.sequences
        assert self._sequence_ids == [sequence.sequence_id for sequence in self.sequences]

    def _current(self) -> DecodeGroup:
        if self._group is None:
            columns = self._columns[:, : len(self.sequences)].copy()
            self._group = DecodeGroup(self.sequences.copy(), self._sequence_ids.copy(), columns)
        return self._group
