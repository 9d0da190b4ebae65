"""One continuation of a prompt, with the three counters that scheduling is about."""

from __future__ import annotations

from enum import Enum, auto

from engine.constraint import Matcher
from engine.request import Request


class SequenceStatus(Enum):
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Sequence:
    """A sequence holds its tokens, its blocks and three counters, kept apart always:

    num_tokens            all tokens now in it, pending ones included
    num_cached_tokens     tokens whose K and V are computed, or will be by a step already planned
    num_scheduled_tokens  those of the cached tokens that steps not committed yet are computing

    Prompt [A, B, C] after the prefill that sampled D: 4 tokens, 3 cached; the next step feeds D.
    """

    __slots__ = (
        "block_hashes",
        "block_table",
        "cache_salt",
        "decode_limit",
        "index",
        "leader",
        "matcher",
        "max_length",
        "max_tokens",
        "min_tokens",
        "num_admissions",
        "num_cached_tokens",
        "num_pending_tokens",
        "num_prefill_tokens",
        "num_prompt_tokens",
        "num_published_blocks",
        "num_scheduled_tokens",
        "order",
        "params",
        "request",
        "row",
        "sequence_id",
        "settle_limit",
        "status",
        "stop_ids",
        "token_ids",
    )

    def __init__(self, request: Request, index: int, max_tokens: int) -> None:
        """`index` is its place among the request's n; `max_tokens` is resolved against the context limit."""
        self.request = request
        self.index = index
        self.sequence_id = request.sequence_ids[index]
        self.params = request.params
        self.status = SequenceStatus.WAITING
        self.order = (0, 0)  # smaller is served first and preempted last
        self.leader: Sequence | None = (
            None  # the sibling whose prefill this one waits for, to share its blocks
        )

        self.token_ids: list[int] = request.prompt_token_ids.tolist()  # those that the host knows
        self.num_prompt_tokens = len(self.token_ids)
        self.num_pending_tokens = 0  # that planned steps will sample, beyond those the host knows
        self.num_cached_tokens = 0
        self.num_scheduled_tokens = 0
        self.num_prefill_tokens = 0  # tokens it held when admitted: it decodes once all of them are cached
        # Below these positions the scheduler need not look closer: a decode has its block and is not the
        # last; a settled one fills no block and is not the last.
        self.decode_limit = 0
        self.settle_limit = 0
        self.max_tokens = max_tokens
        self.max_length = self.num_prompt_tokens + max_tokens
        self.stop_ids: frozenset[int] = frozenset()  # token ids that end it
        constraint = request.constraint
        self.matcher: Matcher | None = None if constraint is None else constraint.new_matcher()
        # Of a constrained output the masks take care, which know whether anything but the end is left.
        self.min_tokens = self.params.min_tokens if constraint is None else 0

        self.row = -1  # index in the runner's resident tables while running
        self.num_admissions = 0  # tells a sequence that came back to a row from one that never left
        self.block_table: list[int] = []
        self.block_hashes: list[bytes] = list(request.block_hashes)
        self.cache_salt = request.cache_salt
        self.num_published_blocks = 0  # leading blocks that the prefix cache has been told of

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + self.num_pending_tokens

    @property
    def num_generated_tokens(self) -> int:
        """Tokens sampled so far, pending ones included."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def waits_for_leader(self) -> bool:
        """Whether the blocks of the shared prompt are still to come.

        They are published once the leader's first token is known; a leader that ended publishes no more.
        """
        leader = self.leader
        return (
            leader is not None
            and leader.status is not SequenceStatus.FINISHED
            and len(leader.token_ids) == leader.num_prompt_tokens
        )
