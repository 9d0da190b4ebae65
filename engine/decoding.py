"""The sequences that decode. A step moves all of them on by one token, at the same cost for few or many."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from engine.decode_clock import DecodeClock
from engine.plan import NO_DECODES, DecodeBatch, Decodes, decode_columns
from engine.sequence import Sequence, SequenceStatus, by_order


class Decoding:
    """Running sequences whose prompts are done, in the policy's order; all take part in every decode step.

    So their counters are not touched: they tell them from the one clock, which counts the steps.
    """

    def __init__(self, max_num_seqs: int, block_size: int) -> None:
        self.sequences: list[Sequence] = []
        self._sequence_ids: list[int] = []
        self._columns = np.empty((4, max_num_seqs), dtype=np.int64)
        self._block_size = block_size
        self._clock = DecodeClock(max_num_seqs, num_kept_steps=block_size)
        self._batch: DecodeBatch | None = NO_DECODES.batch  # None when members have come or gone

    def join(self, sequence: Sequence) -> None:
        """It decodes from the next step on."""
        index, end = bisect_left(self.sequences, sequence.order, key=by_order), len(self.sequences)
        self._columns[:, index + 1 : end + 1] = self._columns[:, index:end]
        self._columns[:, index] = decode_columns(sequence, self._clock.num_planned, self._block_size)
        self.sequences.insert(index, sequence)
        self._sequence_ids.insert(index, sequence.sequence_id)
        sequence.begin_decoding(self._clock)
        self._batch = None

    def leave(self, sequence: Sequence) -> None:
        """It takes no further steps; those under way are settled one by one, in `commit`."""
        index, end = bisect_left(self.sequences, sequence.order, key=by_order), len(self.sequences)
        self._columns[:, index : end - 1] = self._columns[:, index + 1 : end]
        del self.sequences[index], self._sequence_ids[index]
        sequence.end_decoding()
        self._batch = None

    def due(self) -> list[Sequence]:
        """Those that need a block for the next step, and those whose last token is under way."""
        indices = self._current().due(self._clock.num_planned, self._block_size)
        return [self.sequences[index] for index in indices]

    def plan(self) -> Decodes:
        """The next step, of all."""
        if not self.sequences:
            return NO_DECODES
        step = self._clock.num_planned
        self._clock.num_planned += 1
        return Decodes(self._current(), step)

    def commit(self, decodes: Decodes, token_ids: np.ndarray) -> list[Sequence]:
        """Give the sequences of a step their tokens; returns those that have ended since and get none.

        Whoever does not decode any more is given its token at once. All others have to be asked for theirs
        before the clock forgets it, at the end of each block.
        """
        batch = decodes.batch
        self._clock.commit(batch.rows, token_ids)
        if batch is self._batch:
            return []
        left = [index for index, sequence in enumerate(batch.sequences) if sequence.clock is None]
        for index in left:
            sequence = batch.sequences[index]
            if sequence.status is not SequenceStatus.FINISHED:
                sequence.settle(1, samples=True)
                sequence.token_ids.append(int(token_ids[index]))
        return [batch.sequences[i] for i in left if batch.sequences[i].status is SequenceStatus.FINISHED]

    def check(self) -> None:
        """Raise `AssertionError` unless the columns are those of the members."""
        num_planned, block_size = self._clock.num_planned, self._block_size
        columns = [decode_columns(sequence, num_planned, block_size) for sequence in self.sequences]
        assert self._current().columns.T.tolist() == [list(column) for column in columns]
        assert self._current().sequences == self.sequences
        assert self._sequence_ids == [sequence.sequence_id for sequence in self.sequences]

    def _current(self) -> DecodeBatch:
        if self._batch is None:
            columns = self._columns[:, : len(self.sequences)].copy()
            self._batch = DecodeBatch(self.sequences.copy(), self._sequence_ids.copy(), columns)
        return self._batch
