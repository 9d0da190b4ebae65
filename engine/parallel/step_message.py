"""A step's plan as the bytes that the other ranks need to run it, and back.

Ranks keep a copy of each running sequence, as far as runners read it, so a message holds what is new: the
sequences that were admitted, whole; the blocks that grew; which rows compute what.
"""

from __future__ import annotations

import copyreg
import pickle
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from engine.plan import ScheduledSequence, StepPlan
from engine.record import RequestRecord
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence


def _read_only(mapping: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(mapping)


# Sampling parameters hold their logit_bias in one, which pickle does not know.
copyreg.pickle(MappingProxyType, lambda proxy: (_read_only, (dict(proxy),)))


class _Admission(NamedTuple):
    """A sequence that has come to a row."""

    row: int
    sequence_id: int
    choice: int  # its index among the request's n
    num_admissions: int
    params: SamplingParams
    first_token_ns: int  # of the request: prompts are scored before it alone
    prompt_token_ids: np.ndarray
    generated: list[int]  # before a preemption
    block_table: list[int]


class _StepMessage(NamedTuple):
    step: int
    admissions: list[_Admission]
    new_blocks: list[tuple[int, int]]  # (row, block at the end of its table)
    decode_rows: list[int] | None  # None: those of the step before
    decode_starts: bytes  # int32
    chunks: list[tuple[int, int, int, bool]]  # row, start, num_tokens, samples


class StepEncoder:
    """Rank 0's side. Every plan must be encoded, in order, before the next one is scheduled."""

    def __init__(self, num_rows: int, block_size: int) -> None:
        self._block_size = block_size
        self._owners = [(-1, -1)] * num_rows  # (sequence id, which admission of it) that others know
        self._decode_rows: list[int] = []

    def encode(self, plan: StepPlan) -> bytes:
        decodes, block_size = plan.decodes, self._block_size
        rows = [entry.row for entry in decodes]
        starts = [entry.start for entry in decodes]
        message = _StepMessage(
            step=plan.step,
            admissions=[self._admit(chunk) for chunk in plan.chunks if self._is_new(chunk)],
            # The scheduler gives a decode a block when it begins one.
            new_blocks=[(e.row, e.sequence.block_table[-1]) for e in decodes if e.start % block_size == 0],
            decode_rows=None if rows == self._decode_rows else rows,
            decode_starts=np.array(starts, dtype=np.int32).tobytes(),
            chunks=[(chunk.row, chunk.start, chunk.num_tokens, chunk.samples) for chunk in plan.chunks],
        )
        self._decode_rows = rows
        return pickle.dumps(tuple(message), protocol=pickle.HIGHEST_PROTOCOL)

    def _is_new(self, chunk: ScheduledSequence) -> bool:
        sequence = chunk.sequence
        return self._owners[chunk.row] != (sequence.sequence_id, sequence.num_admissions)

    def _admit(self, chunk: ScheduledSequence) -> _Admission:
        sequence = chunk.sequence
        self._owners[chunk.row] = (sequence.sequence_id, sequence.num_admissions)
        return _Admission(
            chunk.row,
            sequence.sequence_id,
            sequence.index,
            sequence.num_admissions,
            sequence.params,
            sequence.request.record.first_token_ns,
            sequence.request.prompt_token_ids,
            sequence.token_ids[sequence.num_prompt_tokens : sequence.num_prefill_tokens],
            sequence.block_table,
        )


class StepDecoder:
    """The other ranks' side: plans over copies of the sequences."""

    def __init__(self, num_rows: int) -> None:
        self._sequences: list[Sequence | None] = [None] * num_rows
        self._decode_rows: list[int] = []

    def decode(self, payload: bytes) -> StepPlan:
        message = _StepMessage(*pickle.loads(payload))
        for admission in message.admissions:
            self._sequences[admission.row] = _copy_of(admission)
        for row, block in message.new_blocks:
            self._sequence(row).block_table.append(block)
        if message.decode_rows is not None:
            self._decode_rows = message.decode_rows
        starts = np.frombuffer(message.decode_starts, dtype=np.int32).tolist()
        return StepPlan(
            message.step,
            decodes=[
                ScheduledSequence(self._sequence(row), row, start, 1, True)
                for row, start in zip(self._decode_rows, starts, strict=True)
            ],
            chunks=[
                ScheduledSequence(self._sequence(row), row, start, num_tokens, samples)
                for row, start, num_tokens, samples in message.chunks
            ],
        )

    def _sequence(self, row: int) -> Sequence:
        sequence = self._sequences[row]
        assert sequence is not None, f"row {row} has no sequence"
        return sequence


def _copy_of(admission: _Admission) -> Sequence:
    record = RequestRecord("", first_token_ns=admission.first_token_ns)
    request = Request("", admission.prompt_token_ids, admission.params, [], record)
    sequence = Sequence(request, index=0, max_tokens=0)
    sequence.sequence_id = admission.sequence_id
    sequence.index = admission.choice
    sequence.num_admissions = admission.num_admissions
    sequence.token_ids += admission.generated
    sequence.num_prefill_tokens = len(sequence.token_ids)
    sequence.block_table = admission.block_table
    return sequence
