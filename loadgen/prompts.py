"""Prompts as token ids: the exact length of the trace, and the sharing of prefixes that it recorded.

Every block of tokens is a pure function of (seed, nonce, copy, block id), so equal ids give equal tokens in
any run, process or order. Requests hold references to shared JSON fragments, not copies of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import orjson

from loadgen.schedule import ScheduledRequest
from loadgen.traces.records import Trace, TraceRow
from loadgen.words import WORDS

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class TokenRange:
    """Token ids `low <= id < high`. The default avoids the special tokens of common vocabularies."""

    low: int = 1000
    high: int = 30000

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ValueError(f"token range {self.low}:{self.high} is empty or negative")

    @property
    def size(self) -> int:
        return self.high - self.low

    @classmethod
    def of_vocabulary(cls, vocab_size: int) -> TokenRange:
        """The part of a vocabulary that prompts may use: its start, where special tokens are, is left out."""
        return cls(min(1000, vocab_size // 10), min(30000, vocab_size))


def _mix(value: int) -> int:
    """The splitmix64 finaliser (Steele, Lea, Flood, OOPSLA 2014) of one 64-bit number."""
    value = (value + GOLDEN) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def _mix_array(values: np.ndarray) -> np.ndarray:
    """`_mix` of every element of a uint64 array."""
    values = values + np.uint64(GOLDEN)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed


def sibling_shifts(rows: Iterable[TraceRow], slots: int) -> dict[int, int]:
    """Hash ids whose first token must move so that no two blocks under one prefix begin alike.

    A block's first token follows from its id modulo `slots`; where a sibling has that token already, the
    block takes the next free one. Walk all rows of a trace, whatever is sent, so that windows agree.
    Returns {hash id: how far to move}, with no entry for the many ids that stay.
    """
    taken: dict[int | None, set[int]] = {}
    placed: set[int] = set()
    shifts: dict[int, int] = {}
    for row in rows:
        parent: int | None = None
        for block_id in row.hash_ids or ():
            if block_id not in placed:
                placed.add(block_id)
                siblings = taken.setdefault(parent, set())
                slot = block_id % slots
                while slot in siblings and len(siblings) < slots:
                    slot = (slot + 1) % slots
                siblings.add(slot)
                if slot != block_id % slots:
                    shifts[block_id] = slot - block_id
            parent = block_id
    return shifts


class PromptBuilder:
    """Makes the prompts of the requests of one trace, as token ids or, for chats, as words."""

    def __init__(self, trace: Trace, token_range: TokenRange, *, seed: int = 0, nonce: int = 0) -> None:
        self.nonce = nonce
        self._range = token_range
        self._block_size = trace.block_size
        self._shifts = sibling_shifts(trace.rows, token_range.size)
        self._key = _mix(_mix(seed & MASK) ^ (nonce & MASK))
        self._fragments: dict[tuple[int, int], bytes] = {}  # (copy, hash id) -> a full block's "1,2,3"
        self._turns: dict[tuple[int, int], list[bytes]] = {}  # (copy, trace row) -> a turn and its history

    def tokens(self, copy: int, block_id: int, length: int) -> np.ndarray:
        """`length` int64 tokens of a block. Siblings differ in the first one, so that no partial match with
        another block can pass for a shared prefix."""
        key = _mix(self._key ^ _mix(copy))
        base = np.uint64(_mix(key ^ _mix(block_id & MASK)))
        draws = _mix_array(base + np.arange(length, dtype=np.uint64))
        tokens = (draws % np.uint64(self._range.size)).astype(np.int64) + self._range.low
        slot = block_id + self._shifts.get(block_id, 0)
        tokens[0] = self._range.low + (slot + key) % self._range.size
        return tokens

    def fragments(self, request: ScheduledRequest) -> list[bytes]:
        """The prompt's ids as comma-separated decimal text, in pieces to be joined by commas.

        A later turn of a session begins with the turn before and the reply that the trace recorded, made up
        to its length: a server that answers something else has that prefix cached but for the reply.
        """
        if request.session is None:
            return self._own_fragments(request)
        turn = (request.copy, request.trace_row)
        if turn not in self._turns:
            self._turns[turn] = [*self._history(request), *self._own_fragments(request)]
        return self._turns[turn]

    def text(self, request: ScheduledRequest) -> str:
        """A request's own part of the prompt as words, about one a token."""
        return " ".join(
            self._words(request.copy, block_id, length) for block_id, length in self._blocks(request)
        )

    def reply_text(self, request: ScheduledRequest) -> str:
        return self._words(request.copy, _reply_id(request), request.output_tokens)

    def _history(self, request: ScheduledRequest) -> list[bytes]:
        before = request.previous
        if before is None or not request.continues:
            return []
        reply = self._encode(before.copy, _reply_id(before), before.output_tokens)
        return [*self.fragments(before), reply]

    def _own_fragments(self, request: ScheduledRequest) -> list[bytes]:
        return [self._fragment(request.copy, block_id, length) for block_id, length in self._blocks(request)]

    def _blocks(self, request: ScheduledRequest) -> Iterable[tuple[int, int]]:
        """(block id, tokens) in order; a request without hash ids is one block of its own."""
        total = request.own_tokens
        if request.hash_ids is None or self._block_size is None:
            return [(request.trace_row, total)]
        size = self._block_size
        lengths = [min(size, total - at) for at in range(0, total, size)]
        return zip(request.hash_ids, lengths, strict=True)

    def _fragment(self, copy: int, block_id: int, length: int) -> bytes:
        if length != self._block_size:
            return self._encode(copy, block_id, length)
        fragment = self._fragments.get((copy, block_id))
        if fragment is None:
            fragment = self._fragments[copy, block_id] = self._encode(copy, block_id, length)
        return fragment

    def _encode(self, copy: int, block_id: int, length: int) -> bytes:
        return orjson.dumps(self.tokens(copy, block_id, length), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]

    def _words(self, copy: int, block_id: int, length: int) -> str:
        return " ".join(WORDS[token % len(WORDS)] for token in self.tokens(copy, block_id, length))


def _reply_id(request: ScheduledRequest) -> int:
    """Names the block of a reply; those of prompts are not negative."""
    return -1 - request.trace_row
