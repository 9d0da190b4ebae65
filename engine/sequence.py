"""One continuation of a prompt, with the three counters that scheduling is about."""

from __future__ import annotations

from enum import Enum, auto
from operator import attrgetter

from engine.constraint import Matcher
from engine.decode_steps import DecodeSteps
from engine.request import Request

by_order = attrgetter("order")
"""Sorts sequences as the policy serves them."""


class SequenceStatus(Enum):
    """Where it stands: in the queue, in a row, or nowhere any more."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Sequence:
    """A sequence holds its tokens, its blocks and three counters, kept apart always:

    num_tokens            all tokens now in it, pending ones included
    num_cached_tokens     tokens whose K and V are computed, or will be by a step already planned
    num_scheduled_tokens  those of the cached tokens that steps not committed yet are computing

    Prompt [A, B, C] after the prefill that sampled D: 4 tokens, 3 cached; the next step feeds D.

    While it decodes, the counters move with the decode steps, which are counted once for all sequences, so
    that a step need not touch each of them: a counter is what it was when decoding began, and the steps
    since. The newest tokens are kept there too until they are read.
    """

    __slots__ = (
        "_num_cached_tokens",
        "_num_pending_tokens",
        "_num_scheduled_tokens",
        "_num_steps_before",
        "_num_steps_read",
        "_token_ids",
        "block_hashes",
        "block_table",
        "cache_salt",
        "decode_steps",
        "index",
        "leader",
        "matcher",
        "max_length",
        "max_tokens",
        "min_tokens",
        "num_admissions",
        "num_prefill_tokens",
        "num_prompt_tokens",
        "num_published_blocks",
        "order",
        "params",
        "request",
        "row",
        "sequence_id",
        "status",
        "stop_ids",
        "token_times_ns",
    )

    def __init__(self, request: Request, index: int, max_tokens: int) -> None:
        """`index` is its place among the request's n; `max_tokens` is resolved against the context limit."""
        self.request = request
        self.index = index
        self.sequence_id = request.sequence_ids[index]
        self.params = request.params
        self.status = SequenceStatus.WAITING
        self.order = (0, 0)  # smaller is served first and preempted last
        self.leader: Sequence | None = None  # sibling whose prefill it waits for, to share its blocks

        self._token_ids: list[int] = request.prompt_token_ids.tolist()
        self.token_times_ns = request.record.token_times_ns[index]  # of those past the prompt
        self.num_prompt_tokens = len(self._token_ids)
        self._num_cached_tokens = 0
        self._num_scheduled_tokens = 0
        self._num_pending_tokens = 0
        self.decode_steps: DecodeSteps | None = None  # while it decodes
        self._num_steps_before = 0  # decode steps that had been planned when decoding began
        self._num_steps_read = 0  # decode steps whose tokens stand in `_token_ids`
        self.num_prefill_tokens = 0  # tokens it held when admitted: it decodes once all of them are cached
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
    def token_ids(self) -> list[int]:
        """Those that the host knows; the next one may be appended. For the engine thread: it takes the newest
        ones from `decode_steps`.
        """
        if self.decode_steps is not None and self._num_steps_read < self.decode_steps.num_committed:
            self._token_ids += self.decode_steps.tokens_since(self._num_steps_read, self.row)
            self._num_steps_read = self.decode_steps.num_committed
        return self._token_ids

    @property
    def num_tokens(self) -> int:
        """All, pending ones included; a decoding sequence has one that is not cached."""
        if self.decode_steps is not None:
            return self.num_cached_tokens + 1
        return len(self._token_ids) + self._num_pending_tokens

    @property
    def num_cached_tokens(self) -> int:
        """Tokens whose K and V are computed, or will be by a step already planned."""
        return self._num_cached_tokens + self._num_decodes_planned

    @property
    def num_scheduled_tokens(self) -> int:
        """Those of the cached tokens that steps not committed yet are computing."""
        return self._num_scheduled_tokens + self._num_decodes_in_flight

    @property
    def num_pending_tokens(self) -> int:
        """Tokens that planned steps sample and the host does not know yet: one for each step, at most."""
        return self._num_pending_tokens + self._num_decodes_in_flight

    @property
    def num_generated_tokens(self) -> int:
        """Tokens sampled so far, pending ones included."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def is_prompt(self) -> bool:
        """Whether it runs and steps that compute what it had at its admission are still to be planned."""
        return self.num_cached_tokens < self.num_prefill_tokens

    @property
    def _num_decodes_planned(self) -> int:
        """Since decoding began; 0 when it does not decode."""
        return 0 if self.decode_steps is None else self.decode_steps.num_planned - self._num_steps_before

    @property
    def _num_decodes_in_flight(self) -> int:
        """Likewise: those that are not committed yet."""
        if self.decode_steps is None:
            return 0
        return self.decode_steps.num_planned - max(self.decode_steps.num_committed, self._num_steps_before)

    def plan(self, num_tokens: int, *, samples: bool) -> None:
        """A step is going to compute its next `num_tokens` tokens, and to sample one if it `samples`."""
        self._num_cached_tokens += num_tokens
        self._num_scheduled_tokens += num_tokens
        self._num_pending_tokens += samples

    def settle(self, num_tokens: int, *, samples: bool) -> None:
        """That step is committed. Whoever settles it appends the token."""
        self._num_scheduled_tokens -= num_tokens
        self._num_pending_tokens -= samples

    def begin_decoding(self, steps: DecodeSteps) -> None:
        """From now on every step that is counted there plans or commits one of its decodes."""
        self.decode_steps = steps
        self._num_steps_before = self._num_steps_read = steps.num_planned

    def end_decoding(self) -> None:
        """Its counters are its own again; decodes under way are settled one by one."""
        self._token_ids = self.token_ids  # read while it still decodes
        num_in_flight = self._num_decodes_in_flight
        self._num_cached_tokens += self._num_decodes_planned
        self._num_scheduled_tokens += num_in_flight
        self._num_pending_tokens += num_in_flight
        self.decode_steps = None

    def admit(self, row: int, num_cached_tokens: int) -> None:
        """It runs; so many of its tokens stand in the blocks it got, and all others are to be computed."""
        self.status = SequenceStatus.RUNNING
        self.row = row
        self._num_cached_tokens = num_cached_tokens
        self.num_prefill_tokens = self.num_tokens
        self.num_admissions += 1

    def withdraw(self) -> None:
        """It has lost row and blocks. Steps under way may still bring tokens."""
        self.status = SequenceStatus.WAITING
        self.row = -1
        self._num_cached_tokens = 0
        self.num_prefill_tokens = 0

    def finish(self) -> None:
        """What steps under way sample is dropped."""
        self.status = SequenceStatus.FINISHED
        self._num_scheduled_tokens = self._num_pending_tokens = 0

    @property
    def waits_for_leader(self) -> bool:
        """Whether the blocks of the shared prompt are still to come.

        They are published once the leader's first token is known; a leader that ended publishes no more. Any
        thread may ask, so `decode_steps` is not read: it never holds a first token, which the end of a
        prompt brings.
        """
        leader = self.leader
        return (
            leader is not None
            and leader.status is not SequenceStatus.FINISHED
            and len(leader._token_ids) == leader.num_prompt_tokens
        )
