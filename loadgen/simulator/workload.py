"""Requests of a load as the scheduler wants them, without a token: lengths, and hashes for what is shared."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from engine.record import RequestRecord
from engine.request import Request
from engine.sampling_params import SamplingParams
from loadgen.schedule import ScheduledRequest

TOKEN = 0
"""Stands for every token, since only their number counts."""


class RequestMaker:
    """Makes engine requests whose prompts share blocks where the load's prompts share tokens."""

    def __init__(self, block_size: int, trace_block_size: int | None) -> None:
        self._block_size = block_size
        self._trace_block_size = trace_block_size
        self._zeros = np.zeros(1 << 14, dtype=np.int32)
        self._sessions: dict[int, list[bytes]] = {}  # by a turn's index: its blocks, the reply's among them

    def make(self, scheduled: ScheduledRequest) -> Request:
        hashes = self._prompt_hashes(scheduled)
        if scheduled.session is not None:
            self._sessions[scheduled.index] = hashes + self.output_hashes(scheduled)
        return Request(
            request_id=str(scheduled.index),
            prompt_token_ids=self._prompt(scheduled.input_tokens),
            params=_params(scheduled.output_tokens),
            block_hashes=hashes,
            record=RequestRecord(str(scheduled.index), token_times_ns=[[]]),
        )

    def output_hashes(self, scheduled: ScheduledRequest) -> list[bytes]:
        """Of the blocks that the answer will fill, known ahead so that nothing need be hashed."""
        first = scheduled.input_tokens // self._block_size
        last = (scheduled.input_tokens + scheduled.output_tokens) // self._block_size
        return [b"out %d %d" % (scheduled.index, block) for block in range(first, last)]

    def _prompt_hashes(self, scheduled: ScheduledRequest) -> list[bytes]:
        """One for each full block of the prompt: equal where all tokens up to its end are equal.

        A trace's id stands for its block and all that precedes it, so the last id that a block touches says
        all; a prompt without ids is like no other, but for the turns that it continues.
        """
        num_blocks = scheduled.input_tokens // self._block_size
        if scheduled.continues and scheduled.previous is not None:
            known = self._sessions.get(scheduled.previous.index, [])[:num_blocks]
            return known + [b"own %d %d" % (scheduled.index, i) for i in range(len(known), num_blocks)]
        ids = scheduled.hash_ids
        if ids is None or self._trace_block_size is None:
            return [b"own %d %d" % (scheduled.index, i) for i in range(num_blocks)]
        ends = range(self._block_size - 1, num_blocks * self._block_size, self._block_size)
        return [b"%d %d %d" % (scheduled.copy, ids[end // self._trace_block_size], end) for end in ends]

    def _prompt(self, num_tokens: int) -> np.ndarray:
        while num_tokens > len(self._zeros):
            self._zeros = np.zeros(2 * len(self._zeros), dtype=np.int32)
        return self._zeros[:num_tokens]


@lru_cache(maxsize=1 << 14)
def _params(output_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=output_tokens, ignore_eos=True)
