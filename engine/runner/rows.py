"""State that lives on the device between steps, one row for each running sequence."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch

from engine.plan import ScheduledSequence
from engine.runner.device_fields import DeviceFields
from engine.runner.upload import upload
from engine.sequence import Sequence

_MASK64 = (1 << 64) - 1


def _splitmix64(x: int) -> int:
    """One step of splitmix64 (Steele, Lea, Flood 2014): a well-mixed 64-bit value from any integer."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def sequence_seed(sequence: Sequence, engine_seed: int) -> int:
    """The signed 64-bit seed of a sequence: from (request seed, choice), or from the engine's seed."""
    if sequence.params.seed is None:
        mixed = _splitmix64(_splitmix64(engine_seed) ^ sequence.sequence_id)
    else:
        mixed = _splitmix64(_splitmix64(sequence.params.seed & _MASK64) ^ sequence.index)
    return mixed - (1 << 64) if mixed >> 63 else mixed


class Wants(IntEnum):
    """What a sequence asks of the sampler, the least first."""

    TEMPERATURE = 0
    """Or the most likely token."""
    RESTRICTION = 1
    """And top-k, top-p or min-p."""
    MORE = 2


def _wants_of(sequence: Sequence) -> Wants:
    params = sequence.params
    if (
        params.has_penalties
        or params.logit_bias
        or params.min_tokens
        or params.logprobs is not None
        or sequence.matcher is not None
    ):
        return Wants.MORE
    return Wants.RESTRICTION if params.restricts_choice and not params.is_greedy else Wants.TEMPERATURE


class Rows:
    """Block tables and sampling state by row, and the rows of the batch that runs.

    What the host knows of it stays on the device between steps, in `fields`, and only changes are sent. Each
    field there has one row more than sequences can take: `spare`, greedy and of no sequence, for what pads a
    batch. The block tables are kept on the host too (`block_tables` [rows, max_blocks] int32).
    """

    def __init__(
        self, num_rows: int, max_blocks: int, vocab_size: int, device: torch.device, engine_seed: int
    ) -> None:
        self.vocab_size = vocab_size
        self.spare = num_rows
        self.engine_seed = engine_seed
        self.device = device
        self.block_tables = np.zeros((num_rows, max_blocks), dtype=np.int32)
        by_row = (num_rows + 1,)
        self.fields = DeviceFields(
            {
                "last_token": (by_row, torch.int64),
                "temperature": (by_row, torch.float32),
                "top_p": (by_row, torch.float32),
                "min_p": (by_row, torch.float32),
                "top_k": (by_row, torch.int64),
                "seed": (by_row, torch.int64),
                # What graphs read, see `engine.runner.decode_tables`.
                "length": (by_row, torch.int64),
                "block_table": ((num_rows + 1, max_blocks), torch.int32),
                "batch": ((num_rows,), torch.int64),
            },
            device,
        )
        self.last_token, self.temperature = self.fields["last_token"], self.fields["temperature"]
        self.top_k, self.top_p, self.min_p = (self.fields[name] for name in ("top_k", "top_p", "min_p"))
        self.seed = self.fields["seed"]
        self.top_p.fill_(1)
        # On the host: who draws a token by chance, and what else each asks for (`Wants`).
        self.draws = np.zeros(num_rows, dtype=np.bool_)
        self.wants = np.zeros(num_rows, dtype=np.int8)
        self.penalties = _PenaltyRows(num_rows, vocab_size, device)
        self._owner = [(-1, -1)] * num_rows  # (sequence id, which admission of it) that set the row up
        self._num_blocks = [0] * num_rows

    def update(self, scheduled: ScheduledSequence) -> range:
        """Bring a row up to date with its sequence: set it up if it is new there, append its new blocks.

        Returns which entries of its block table are new. What is noted of it has to be sent, `fields.send`.
        """
        sequence, row = scheduled.sequence, scheduled.row
        owner = (sequence.sequence_id, sequence.num_admissions)
        if self._owner[row] != owner:
            self._owner[row] = owner
            self._num_blocks[row] = 0
            self._set_sampling(sequence, row)
        have, table = self._num_blocks[row], sequence.block_table
        if len(table) > have:
            self.block_tables[row, have : len(table)] = table[have:]
            self._num_blocks[row] = len(table)
        return range(have, len(table))

    def _set_sampling(self, sequence: Sequence, row: int) -> None:
        params = sequence.params
        self.draws[row] = not params.is_greedy
        self.wants[row] = _wants_of(sequence)
        for name in ("temperature", "top_p", "min_p"):
            self.fields.note_bits(name, row, np.float32(getattr(params, name)))
        self.fields.note("top_k", row, [min(max(params.top_k, 0), self.vocab_size)])
        self.fields.note_bits("seed", row, np.int64(sequence_seed(sequence, self.engine_seed)))
        if params.has_penalties:
            self.penalties.set(sequence, row)


class _PenaltyRows:
    """Which tokens each row holds; allocated when the first request with a penalty comes."""

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._shape = (num_rows, vocab_size)
        self._device = device
        self._allocated = False

    def _allocate(self) -> None:
        num_rows, device = self._shape[0], self._device
        self.output_counts = torch.zeros(self._shape, dtype=torch.int32, device=device)
        self.in_prompt = torch.zeros(self._shape, dtype=torch.bool, device=device)
        self.repetition = torch.ones(num_rows, dtype=torch.float32, device=device)
        self.frequency = torch.zeros(num_rows, dtype=torch.float32, device=device)
        self.presence = torch.zeros(num_rows, dtype=torch.float32, device=device)
        self._allocated = True

    def set(self, sequence: Sequence, row: int) -> None:
        if not self._allocated:
            self._allocate()
        params, num_prompt = sequence.params, sequence.num_prompt_tokens
        known = sequence.token_ids[: sequence.num_prefill_tokens]  # without the one being sampled
        tokens = upload(np.array(known, dtype=np.int64), self._device)
        self.in_prompt[row].zero_().index_fill_(0, tokens[:num_prompt], True)
        generated = tokens[num_prompt:]
        ones = torch.ones_like(generated, dtype=torch.int32)
        self.output_counts[row].zero_().index_add_(0, generated, ones)
        self.repetition[row].fill_(params.repetition_penalty)
        self.frequency[row].fill_(params.frequency_penalty)
        self.presence[row].fill_(params.presence_penalty)

    def count(self, rows: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Add one sampled token for each of `rows` [R]."""
        ones = torch.ones_like(token_ids, dtype=torch.int32)
        self.output_counts.index_put_((rows, token_ids), ones, accumulate=True)
