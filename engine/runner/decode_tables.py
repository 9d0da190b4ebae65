"""What decode graphs read, by row, at fixed addresses on the device; the host sends only what changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.plan import ScheduledSequence
from engine.runner.rows import Rows
from kernels.attention.interface import DecodeBatch
from kernels.decode_rows import DecodeRows, gather_decode_rows, record_tokens


class DecodeTables:
    """Lengths and block tables by row, and the rows of the batch that runs: fields of `Rows.fields`.

    The last row (`Rows.spare`) pads batches: its only block is `spare_block`, which belongs to no sequence,
    and its length stays 0. A decode graph itself moves the lengths on; the host sets a row's length once,
    when its prompt is about to have been computed. What is set here is sent with all other words.
    """

    def __init__(self, rows: Rows, block_size: int, spare_block: int) -> None:
        self.lengths, self.batch = rows.fields["length"], rows.fields["batch"]
        self.block_tables = rows.fields["block_table"]
        self.block_tables[rows.spare] = spare_block
        self.spare_slot = spare_block * block_size
        self._block_size = block_size
        self._rows = rows
        self._ones = torch.ones_like(self.batch)
        self._members = np.empty(0, dtype=np.int64)  # the rows of the batch
        self._size = 0  # to which it is padded
        self.empty_batch()

    def update(self, entries: Sequence[ScheduledSequence]) -> None:
        """Set up the rows of these sequences, and tell of their new blocks."""
        for entry in entries:
            new = self._rows.update(entry)
            first = entry.row * self.block_tables.shape[1] + new.start
            self._rows.fields.note("block_table", first, entry.sequence.block_table[new.start :])

    def set_lengths(self, entries: Sequence[ScheduledSequence]) -> None:
        """The prompts of these sequences are computed to the end by the step that comes."""
        for entry in entries:
            self._rows.fields.note("length", entry.row, [entry.start + entry.num_tokens])

    def set_batch(self, members: np.ndarray, size: int) -> None:
        """Make `members` [N] int64 the first rows of a batch that is padded to `size`.

        Nothing is sent when it is the same array as before: it must not be changed.
        """
        if members is self._members and size == self._size:
            return
        padded = np.full(size, self._rows.spare)
        padded[: len(members)] = members
        self._rows.fields.note("batch", 0, padded)
        self._members, self._size = members, size

    def empty_batch(self) -> None:
        """Nothing but padding, at once: for trying a graph out."""
        self.batch.fill_(self._rows.spare)
        self._size = 0

    def gather(self, rows: torch.Tensor, max_context: int) -> tuple[DecodeRows, DecodeBatch]:
        """One new token for each of `rows` [M] int64, in contexts of at most `max_context` tokens."""
        num_blocks = -(-max_context // self._block_size)
        gathered = gather_decode_rows(
            rows, self._rows.last_token, self.lengths, self.block_tables, num_blocks, self._block_size
        )
        batch = DecodeBatch(gathered.block_tables, gathered.context_lens, gathered.slots, max_context)
        return gathered, batch

    def advance(self) -> None:
        """One token more for each member of the batch, whose tokens stand in their rows already."""
        num = len(self._members)
        if num:
            self.lengths.index_add_(0, self.batch[:num], self._ones[:num])

    def record(self, rows: torch.Tensor, token_ids: torch.Tensor) -> None:
        """One token more for each of `rows` [M], namely `token_ids` [M] int64; the spare row stays empty."""
        record_tokens(rows, token_ids, self._rows.last_token, self.lengths, self._rows.spare)
