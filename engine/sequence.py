"""One continuation of a prompt, with the three counters that scheduling is about."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.request import Request

PENDING_TOKEN = -1
"""Holds the place of a token that a launched step will sample but the host has not read yet."""


class SequenceStatus(Enum):
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Sequence:
    """A sequence holds its tokens, its blocks and three counters, kept apart always:

    num_tokens            all tokens now in it, pending ones included
    num_cached_tokens     tokens whose K and V are computed (or will be, by a step already launched)
    num_scheduled_tokens  tokens that the step being planned will compute

    Prompt [A, B, C] after the prefill that sampled D: 4 tokens, 3 cached; the next step feeds D.
    """

    def __init__(self, request: Request, index: int, max_tokens: int) -> None:
        """`index` is its place among the request's n; `max_tokens` is resolved against the context limit."""
        self.request = request
        self.index = index
        self.sequence_id = request.sequence_ids[index]
        self.params = request.params
        self.status = SequenceStatus.WAITING
        self.token_ids: list[int] = request.prompt_token_ids.tolist()
        self.num_prompt_tokens = len(self.token_ids)
        self.num_cached_tokens = 0
        self.num_scheduled_tokens = 0
        self.num_pending_tokens = 0
        self.max_tokens = max_tokens
        self.row = -1  # index in the runner's resident tables while running
        self.block_table: list[int] = []
        self.block_hashes: list[bytes] = list(request.block_hashes)
        self.num_published_blocks = 0
        self.leader: Sequence | None = None  # the sibling whose prefill this one waits for, to share its blocks

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_generated_tokens(self) -> int:
        """Tokens sampled so far, pending ones included."""
        return len(self.token_ids) - self.num_prompt_tokens
