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

from engine.parallel.shared_masks import ElsewhereMatcher
from engine.plan import NO_DECODES, DecodeGroup, Decodes, ScheduledSequence, StepPlan
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
    is_constrained: bool
    first_token_ns: int  # of the request: prompts are scored before it alone
    prompt_token_ids: np.ndarray
    generated: list[int]  # before a preemption
    block_table: list[int]


class _StepMessage(NamedTuple):
    step: int
    admissions: list[_Admission]
    new_blocks: list[tuple[int, int]]  # (row, block at the end of its table)
    decode_columns: bytes | None  # of the `DecodeGroup`; None: that of the step before
    decode_step: int
    chunks: list[tuple[int, int, int, bool]]  # row, start, num_tokens, samples


class StepEncoder:
    """Rank 0's side. Every plan must be encoded, in order, before the next one is scheduled."""

    def __init__(self, num_rows: int, block_size: int) -> None:
        self._block_size = block_size
        self._owners = [(-1, -1)] * num_rows  # (sequence id, which admission of it) that others know
        self._decode_group = NO_DECODES.group

    def encode(self, plan: StepPlan) -> bytes:
        """What the other ranks' decoders make the same plan of."""
        decodes, group = plan.decodes, plan.decodes.group
        grown = decodes.that_begin_a_block(self._block_size)
        message = _StepMessage(
            step=plan.step,
            admissions=[self._admit(chunk) for chunk in plan.chunks if self._is_new(chunk)],
            new_blocks=[(decode.row, decode.sequence.block_table[-1]) for decode in grown],
            decode_columns=None if group is self._decode_group else group.columns.tobytes(),
            decode_step=decodes.step,
            chunks=[(chunk.row, chunk.start, chunk.num_tokens, chunk.samples) for chunk in plan.chunks],
        )
        self._decode_group = group
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
            sequence.matcher is not None,
            sequence.request.record.first_token_ns,
            sequence.request.prompt_token_ids,
            sequence.token_ids[sequence.num_prompt_tokens : sequence.num_prefill_tokens],
            sequence.block_table,
        )


class StepDecoder:
    """The other ranks' side: plans over copies of the sequences."""

    def __init__(self) -> None:
        self._sequences: dict[int, Sequence] = {}  # by row
        self._decode_group = NO_DECODES.group

    def decode(self, payload: bytes) -> StepPlan:
        """The plan that was encoded. Payloads must come in order, each once."""
        message = _StepMessage(*pickle.loads(payload))
        for admission in message.admissions:
            self._sequences[admission.row] = _copy_of(admission)
        for row, block in message.new_blocks:
            self._sequences[row].block_table.append(block)
        if message.decode_columns is not None:
            columns = np.frombuffer(message.decode_columns, np.int64).reshape(4, -1).copy()
            sequences = [self._sequences[row] for row in columns[0].tolist()]
            ids = [sequence.sequence_id for sequence in sequences]
            self._decode_group = DecodeGroup(sequences, ids, columns)
        chunks = [ScheduledSequence(self._sequences[chunk[0]], *chunk) for chunk in message.chunks]
        return StepPlan(message.step, Decodes(self._decode_group, message.decode_step), chunks)


def _copy_of(admission: _Admission) -> Sequence:
    record = RequestRecord("", first_token_ns=admission.first_token_ns)
    request = Request("", admission.prompt_token_ids, admission.params, [], record)
    sequence = Sequence(request, index=0, max_tokens=0)
    sequence.sequence_id = admission.sequence_id
    sequence.index = admission.choice
    sequence.num_admissions = admission.num_admissions
    sequence.matcher = ElsewhereMatcher() if admission.is_constrained else None
    sequence.token_ids.extend(admission.generated)
    sequence.num_prefill_tokens = len(sequence.token_ids)
    sequence.block_table = admission.block_table
    return sequence
