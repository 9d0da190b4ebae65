"""What runs in each step: decodes, chunks of prompts, admissions, preemption.

A step is planned by `schedule` and settled by `commit`, and with overlap the next one is planned in between.
So planning moves the counters at once, and counts the tokens that the step will sample. A plan's entry stays
valid until its commit: a sequence with such entries may be preempted but not admitted again, and one that has
finished is skipped, which is how a token sampled after the end is dropped.

Both queues are kept in the policy's order. It decides who is admitted (the head; nobody overtakes it) and who
is preempted (the tail), so the first one always advances, and then the next becomes the first.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike

from engine.block_manager import BlockManager
from engine.chunk_budget import ChunkBudget
from engine.committed import CommittedStep
from engine.config import ConfigError, SchedulerConfig
from engine.decoding import Decoding
from engine.handle import PromptTooLongError
from engine.invariants import check_counters, check_queues, check_rows_and_blocks, check_stages
from engine.plan import NO_DECODES, Decodes, ScheduledSequence, StepPlan
from engine.policies import POLICIES, Stage
from engine.request import NO_TOKEN, FinishReason, Request
from engine.sequence import Sequence, SequenceStatus, by_order
from engine.sequence_blocks import SequenceBlocks
from engine.stop_ids import StopIds


def _remove_from(queue: list[Sequence], sequence: Sequence) -> None:
    del queue[bisect_left(queue, sequence.order, key=by_order)]


class Scheduler:
    """Owns queues, rows, blocks. The engine thread calls it; any thread may read the counts (`num_...`)."""

    def __init__(
        self,
        config: SchedulerConfig,
        eos_token_ids: frozenset[int],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Raises `ConfigError` for limits under which some accepted request could never run."""
        if config.max_num_batched_tokens < config.max_num_seqs:
            raise ConfigError("--max-num-batched-tokens must be at least --max-num-seqs: one token each")
        if config.num_blocks * config.block_size < config.max_model_len:
            raise ConfigError(
                f"--max-model-len of {config.max_model_len} tokens does not fit the KV pool of "
                f"{config.num_blocks} blocks of {config.block_size}"
            )
        self.config = config
        self.eos_token_ids = eos_token_ids
        self.block_manager = BlockManager(config.num_blocks, config.block_size)
        self._blocks = SequenceBlocks(self.block_manager)
        self._clock = clock
        self._policy = POLICIES[config.policy]
        target_s = config.itl_target_s
        self.chunk_budget = ChunkBudget(target_s, config.row_sizes) if target_s else None
        stages = {
            Stage.DECODES: self._plan_decodes,
            Stage.CHUNKS: self._plan_chunks,
            Stage.ADMISSIONS: self._plan_admissions,
        }
        self._passes = [[stages[stage] for stage in each] for each in self._policy.passes]
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._prompts: list[Sequence] = []  # of the running ones those that are not computed to the end
        self._decoding = Decoding(config.max_num_seqs, config.block_size)  # those that are, and want more
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        self._sequences: dict[int, Sequence] = {}  # those that have not ended, by id
        self._siblings: dict[str, list[Sequence]] = {}  # likewise, by request id
        self._stop_ids = StopIds()
        self._arrivals = itertools.count()
        self._num_steps = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_deferred(self) -> int:
        """Of those waiting, the siblings that could not be admitted even if there were room."""
        return sum(sequence.waits_for_leader for sequence in self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def request_ids(self) -> list[str]:
        """Of the requests that have not ended, each once."""
        return list(self._siblings)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    # Requests come and go.

    def check_request(self, request: Request) -> None:
        """Any thread may ask whether `add` would take a request.

        Raises `PromptTooLongError`, or `ValueError` for an empty prompt or hashes of another block size.
        """
        num_prompt_tokens = len(request.prompt_token_ids)
        num_tokens = num_prompt_tokens + (request.params.max_tokens != 0)
        if num_tokens > self.config.max_model_len:
            raise PromptTooLongError(
                f"the prompt has {num_prompt_tokens} tokens, which leaves no room in the context of "
                f"{self.config.max_model_len}"
            )
        if not num_prompt_tokens:
            raise ValueError("the prompt is empty")
        if len(request.block_hashes) != num_prompt_tokens // self.config.block_size:
            raise ValueError(
                f"block_hashes of {request.request_id} are not of {self.config.block_size} tokens"
            )

    def add(self, request: Request) -> list[Sequence]:
        """Queue the n sequences of a request; the later ones wait for the first one's prompt blocks.

        Raises what `check_request` does; nothing is queued then.
        """
        self.check_request(request)
        room = self.config.max_model_len - len(request.prompt_token_ids)
        params = request.params
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        sequences = [Sequence(request, index, max_tokens) for index in range(request.n)]
        for sequence in sequences:
            sequence.order = (self._policy.urgency(request), next(self._arrivals))
            sequence.leader = sequences[0] if sequence.index else None
            sequence.stop_ids = frozenset(params.stop_token_ids)
            if request.ends_at_eos:
                sequence.stop_ids |= self.eos_token_ids
            if not self.config.enable_prefix_caching:
                self._blocks.make_private(sequence)
            self._stop_ids.add(sequence.stop_ids)
            self._sequences[sequence.sequence_id] = sequence
            self._siblings.setdefault(request.request_id, []).append(sequence)
            insort(self._waiting, sequence, key=by_order)
        return sequences

    def abort(self, request_id: str) -> list[Sequence]:
        """Drop what is left of a request, wherever it is. An unknown id gives an empty list."""
        sequences = list(self._siblings.get(request_id, ()))
        for sequence in sequences:
            self._finish(sequence)
        return sequences

    def finish(self, sequence_id: int, reason: FinishReason) -> Sequence | None:
        """End one sequence from outside; None if it has ended already."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self._finish(sequence)
        return sequence

    # One step.

    def schedule(self) -> StepPlan | None:
        """Plan the next step; None if nothing can run, perhaps only until a step in flight is committed."""
        plan = StepPlan(self._num_steps)
        budget = self.config.max_num_batched_tokens
        for stages in self._passes:
            for plan_stage in stages:
                budget = plan_stage(plan, budget)
            if plan.decodes or plan.chunks:
                self._num_steps += 1
                return plan
        return None

    def _plan_decodes(self, plan: StepPlan, budget: int) -> int:
        """Each stage takes the number of tokens that the step may still compute, and returns what is left."""
        for sequence in self._decoding.due():
            if sequence.decode_steps is None:
                continue  # preempted a moment ago
            if sequence.num_tokens == sequence.max_length:
                self._decoding.leave(sequence)  # its last token is under way
            else:
                self._grow(sequence, plan)
        plan.decodes = self._decoding.plan()
        num_decodes = len(plan.decodes)
        budget -= num_decodes
        wants_chunks = self._prompts or self._waiting
        if num_decodes and wants_chunks and self.chunk_budget is not None:
            tokens = self.chunk_budget.tokens(num_decodes, len(self._waiting), self._next_prompt())
            return min(budget, tokens)
        return budget

    def _next_prompt(self) -> int:
        """Tokens that the prompt which comes first has left: one under way, else the head of the queue."""
        if self._prompts:
            return self._prompts[0].num_prefill_tokens - self._prompts[0].num_cached_tokens
        return self._waiting[0].num_tokens

    def _grow(self, sequence: Sequence, plan: StepPlan) -> None:
        """Give it one more block, if need be by preempting the last of the running ones, itself perhaps."""
        while not self.block_manager.num_free:
            victim = self._running[-1]
            self._preempt(victim)
            plan.num_preempted += 1
            if victim is sequence:
                return
        self._blocks.extend(sequence)

    def _plan_chunks(self, plan: StepPlan, budget: int) -> int:
        for sequence in self._prompts.copy():
            if budget:
                budget -= self._plan_chunk(sequence, plan, budget)
        return budget

    def _plan_admissions(self, plan: StepPlan, budget: int) -> int:
        """Admit from the head of the queue while rows, blocks and budget last.

        Only siblings that wait for their leader's blocks are passed by: the leader runs or stands before
        them, so their time comes, and then they are first again.
        """
        passed_by = 0
        while budget and self._free_rows and passed_by < len(self._waiting):
            sequence = self._waiting[passed_by]
            if sequence.waits_for_leader:
                passed_by += 1
                continue
            is_in_flight = sequence.num_scheduled_tokens > 0
            if is_in_flight or not self._blocks.take(sequence, beside_others=bool(self._running)):
                break
            del self._waiting[passed_by]
            self._admit(sequence)
            budget -= self._plan_chunk(sequence, plan, budget)
        return budget

    def _admit(self, sequence: Sequence) -> None:
        """It has its blocks; what of its prompt they hold already need not be computed."""
        insort(self._running, sequence, key=by_order)
        insort(self._prompts, sequence, key=by_order)
        sequence.admit(self._free_rows.pop(), sequence.num_published_blocks * self.config.block_size)
        record = sequence.request.record
        if not record.first_scheduled_ns:
            record.first_scheduled_ns = self._clock()
            record.num_cached_tokens = sequence.num_cached_tokens

    def _plan_chunk(self, sequence: Sequence, plan: StepPlan, budget: int) -> int:
        """Plan as much of a prompt as the budget allows; how many tokens that is."""
        start = sequence.num_cached_tokens
        num_tokens = min(sequence.num_prefill_tokens - start, budget)
        is_last = start + num_tokens == sequence.num_prefill_tokens
        samples = is_last and sequence.max_tokens > 0
        sequence.plan(num_tokens, samples=samples)
        plan.chunks.append(ScheduledSequence(sequence, sequence.row, start, num_tokens, samples))
        if is_last:
            _remove_from(self._prompts, sequence)
            if sequence.num_tokens < sequence.max_length:
                self._decoding.join(sequence)
        return num_tokens

    def commit(self, plan: StepPlan, tokens: ArrayLike) -> CommittedStep:
        """Settle a step: `tokens` are in the order of `plan.sampled`. Steps are committed in order."""
        tokens = np.asarray(tokens, dtype=np.int64)
        num_decodes = len(plan.decodes)
        committed = CommittedStep()
        if num_decodes:
            committed = self._commit_decodes(plan.decodes, tokens[:num_decodes])
        if plan.chunks:
            prompts = self._commit_chunks(plan.chunks, iter(tokens[num_decodes:].tolist()))
            committed = committed.followed_by(prompts)
        return committed

    def _commit_decodes(self, decodes: Decodes, tokens: np.ndarray) -> CommittedStep:
        """All get their tokens; only those are looked at that fill a block or may end."""
        group = decodes.group
        dropped = self._decoding.commit(decodes, tokens)
        ended: dict[int, FinishReason] = {}
        due = group.due(decodes.step + 1, self.config.block_size)
        for index in due + self._stop_ids.find(tokens):
            sequence = group.sequences[index]
            if sequence.status is SequenceStatus.FINISHED:
                continue
            length = len(sequence.token_ids)
            reason = self._settle(sequence, length - 1, sequence.token_ids[-1], length)
            if reason is not None:
                ended[index] = reason
        return CommittedStep.of_decodes(group, tokens, ended, dropped)

    def _commit_chunks(self, chunks: list[ScheduledSequence], tokens: Iterator[int]) -> CommittedStep:
        committed = CommittedStep()
        for sequence, _, start, num_tokens, samples in chunks:
            token_id = next(tokens) if samples else NO_TOKEN
            if sequence.status is SequenceStatus.FINISHED:
                continue
            sequence.settle(num_tokens, samples=samples)
            if samples:
                sequence.token_ids.append(token_id)
            end = start + num_tokens
            reason = self._settle(sequence, end, token_id, end + samples)
            if samples or reason is not None:
                committed.add(sequence, token_id, reason)
        return committed

    def _settle(self, sequence: Sequence, end: int, token_id: int, length: int) -> FinishReason | None:
        """Its tokens before `end` are computed: publish full blocks; if this is the end, say why."""
        if sequence.status is SequenceStatus.RUNNING:  # else its blocks are no longer its own
            self._blocks.publish(sequence, end)
        reason = self._finish_reason(sequence, token_id, length)
        if reason is not None:
            self._finish(sequence)
        return reason

    def _finish_reason(self, sequence: Sequence, token_id: int, length: int) -> FinishReason | None:
        """Why a sequence of `length` tokens ends with this one; None if it goes on."""
        num_generated = length - sequence.num_prompt_tokens
        if token_id in sequence.stop_ids and num_generated >= sequence.min_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if length == sequence.max_length else None

    # Many steps at once, for a simulation: what each of them would do is known.

    def quiet_steps(self, in_flight: StepPlan | None) -> tuple[int, Decodes]:
        """How many steps from the next one on only bring the same sequences a token each; the first of them.

        With at most one step `in_flight`, whose commit does no more than that either, and nothing arriving.
        No sequence ends in them, and there are free blocks for all that begin one.
        """
        if self._waiting or self._prompts or self._stop_ids or (in_flight is not None and in_flight.chunks):
            return 0, NO_DECODES
        num_steps, decodes = self._decoding.quiet_steps(None if in_flight is None else in_flight.decodes)
        num_blocks_each = self.block_manager.num_free // max(len(decodes), 1)
        return min(num_steps, num_blocks_each * self.config.block_size), decodes

    def pass_quiet_steps(self, num_steps: int, token_id: int) -> StepPlan:
        """As if so many quiet steps had been planned and as many committed, in turns; the last plan.

        Those committed are the oldest: if a step was in flight, the last one is now. All bring that token.
        """
        self._num_steps += num_steps
        while num_steps:
            num_passed, begin, filled = self._decoding.pass_quiet_steps(num_steps, token_id)
            for sequence in begin:
                self._blocks.extend(sequence)
            for sequence in filled:
                self._blocks.publish(sequence, len(sequence.token_ids) - 1)
            num_steps -= num_passed
        return StepPlan(self._num_steps - 1, self._decoding.last_planned())

    # A sequence leaves the running ones, for now or for good.

    def _preempt(self, sequence: Sequence) -> None:
        """Back to waiting without blocks; it will recompute all its tokens, those in flight included."""
        self._remove(sequence)
        sequence.request.record.num_preemptions += 1
        insort(self._waiting, sequence, key=by_order)

    def _finish(self, sequence: Sequence) -> None:
        """Ended: what later steps sample for it is dropped."""
        self._remove(sequence)
        sequence.finish()
        self._stop_ids.remove(sequence.stop_ids)
        del self._sequences[sequence.sequence_id]
        siblings = self._siblings[sequence.request.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._siblings[sequence.request.request_id]

    def _remove(self, sequence: Sequence) -> None:
        """Out of its queue; its row and blocks, if any, are free."""
        if sequence.status is SequenceStatus.WAITING:
            _remove_from(self._waiting, sequence)
            return
        _remove_from(self._running, sequence)
        if sequence.is_prompt:
            _remove_from(self._prompts, sequence)
        elif sequence.decode_steps is not None:
            self._decoding.leave(sequence)
        self._free_rows.append(sequence.row)
        self._blocks.give_back(sequence)
        sequence.withdraw()

    def check(self) -> None:
        """Raise `AssertionError` unless every invariant holds. Slow: for tests and --check-invariants."""
        check_queues(self._running, self._waiting, self._sequences, self._siblings)
        check_stages(self._running, self._prompts, self._decoding)
        check_rows_and_blocks(self._running, self._free_rows, self.block_manager, self.config)
        for sequence in self._sequences.values():
            check_counters(sequence, self.config.block_size)
