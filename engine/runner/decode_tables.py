"""What decode graphs read, by row, at fixed addresses on the device; the host sends only what changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.plan import ScheduledSequence
from engine.runner.rows import Rows
from engine.runner.upload import upload, upload_to
from kernels.attention.interface import DecodeBatch
from kernels.decode_rows import DecodeRows, gather_decode_rows, record_tokens


class DecodeTables:
    """Lengths and block tables by row, and the rows of the batch that runs.

    The last row (`Rows.spare`) pads batches: its only block is `spare_block`, which belongs to no sequence,
    and its length stays 0. A decode graph itself moves the lengths on; the host sends a row's length once,
    when its prompt has been computed.
    """

    def __init__(self, rows: Rows, max_batch: int, block_size: int, spare_block: int) -> None:
        num_rows, max_blocks = rows.block_tables.shape
        device = rows.device
        self.lengths = torch.zeros(num_rows + 1, dtype=torch.int64, device=device)
        self.block_tables = torch.zeros((num_rows + 1, max_blocks), dtype=torch.int32, device=device)
        self.block_tables[rows.spare] = spare_block
        self.batch = torch.full((max_batch,), rows.spare, dtype=torch.int64, device=device)
        self.spare_slot = spare_block * block_size
        self._block_size = block_size
        self._rows = rows
        self._ones = torch.ones_like(self.batch)
        self._members = np.empty(0, dtype=np.int64)  # the rows of the batch
        self._size = 0  # to which it is padded
        self._new: list[tuple[int, int]] = []  # (where in `block_tables`, block)

    def update(self, entries: Sequence[ScheduledSequence]) -> None:
        """Take note of the new blocks of these sequences, and set up their rows."""
        for entry in entries:
            table, first = entry.sequence.block_table, entry.row * self.block_tables.shape[1]
            self._new += [(first + index, table[index]) for index in self._rows.update(entry)]

    def send_updates(self) -> None:
        """Send what was noted since the last call, all of it together."""
        self._rows.send()
        if not self._new:
            return
        places, blocks = upload(np.array(self._new, dtype=np.int64).T, self._rows.device)
        self.block_tables.put_(places, blocks.int())
        self._new.clear()

    def send_batch(self, members: np.ndarray, size: int) -> None:
        """Make `members` [N] int64 the first rows of a batch that is padded to `size`.

        Nothing is sent when it is the same array as before: it must not be changed.
        """
        if members is self._members and size == self._size:
            return
        padded = np.full(size, self._rows.spare, dtype=np.int64)
        padded[: len(members)] = members
        upload_to(self.batch[:size], padded)
        self._members, self._size = members, size

    def send_lengths(self, entries: Sequence[ScheduledSequence]) -> None:
        """Tell the device up to where the prompts of these sequences are computed now."""
        lengths = np.array([(entry.row, entry.start + entry.num_tokens) for entry in entries], dtype=np.int64)
        row, length = upload(lengths.T, self._rows.device)
        self.lengths[row] = length

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
