"""An engine without a model, to prove a scheduler right: a KV store whose every slot says what it holds.

A slot holds the digest of the whole prefix that ends there, as a real K and V depend on it. A row is computed
from the digest that its block table finds at the position before, and every position that it attends to must
hold what the sequence alone would have put there. So a block that is read before it was written, reused while
it was needed, or shared by mistake, is noticed at once; and the sampled token, which is a function of the
digest, goes wrong as well.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from engine.block_manager import hash_blocks
from engine.config import SchedulerConfig
from engine.plan import ScheduledSequence, StepPlan
from engine.record import RequestRecord
from engine.request import NO_TOKEN, FinishReason, Request
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Sequence, SequenceStatus

VOCAB_SIZE = 24
EOS_TOKEN_IDS = frozenset({0})


class Oracle:
    """What one sequence is when it runs alone: its tokens, without an end, and the digest of each prefix."""

    def __init__(self, request: Request, index: int, *, shares: bool) -> None:
        """Two sequences may share KV only where their roots agree: by salt, or within one request."""
        self.request, self.index = request, index
        self.root = hash((request.cache_salt, 0 if shares else request.request_id))
        self._tokens: list[int] = request.prompt_token_ids.tolist()
        self._digests: list[int] = []

    def digest(self, position: int) -> int:
        while len(self._digests) <= position:
            before = self._digests[-1] if self._digests else self.root
            self._digests.append(hash((before, self.token(len(self._digests)))))
        return self._digests[position]

    def token(self, position: int) -> int:
        while len(self._tokens) <= position:
            self._tokens.append(self.next_token(self.digest(len(self._tokens) - 1)))
        return self._tokens[position]

    def next_token(self, digest: int) -> int:
        return hash((digest, self.index)) % VOCAB_SIZE

    def output(self, max_model_len: int) -> tuple[list[int], FinishReason]:
        """The tokens it must generate, and why it must end."""
        params, num_prompt = self.request.params, len(self.request.prompt_token_ids)
        ends = set(params.stop_token_ids) | (set() if params.ignore_eos else EOS_TOKEN_IDS)
        room = max_model_len - num_prompt
        limit = room if params.max_tokens is None else min(room, params.max_tokens)
        tokens: list[int] = []
        while len(tokens) < limit:
            tokens.append(self.token(num_prompt + len(tokens)))
            if tokens[-1] in ends and len(tokens) >= params.min_tokens:
                return tokens, FinishReason.STOP
        return tokens, FinishReason.LENGTH


class SimulatedDevice:
    """Runs plans in stream order: at launch, with what the tables say then."""

    def __init__(self, config: SchedulerConfig, oracles: dict[int, Oracle]) -> None:
        self.block_size = config.block_size
        self.kv: dict[int, int] = {}  # slot: digest of the prefix
        self.last_token = [NO_TOKEN] * config.max_num_seqs
        self.oracles = oracles
        self.num_computed_tokens = 0

    def run(self, plan: StepPlan) -> list[int]:
        """The sampled tokens, in the order of `plan.sampled`.

        What is cached must be there before the step, not by its doing, and still be there after all wrote.
        """
        entries = plan.scheduled
        for entry in entries:
            self._check_prefix(entry, entry.start)
        for entry in entries:
            self._write(entry)
        for entry in entries:
            self._check_prefix(entry, entry.start + entry.num_tokens)
        tokens = [self._sample(entry) if entry.samples else NO_TOKEN for entry in entries]
        self.num_computed_tokens += plan.num_tokens
        return [token for token, entry in zip(tokens, entries, strict=True) if entry.samples]

    def _slot(self, sequence: Sequence, position: int) -> int:
        return (
            sequence.block_table[position // self.block_size] * self.block_size + position % self.block_size
        )

    def _write(self, entry: ScheduledSequence) -> None:
        sequence, oracle = entry.sequence, self.oracles[entry.sequence.sequence_id]
        before = self.kv[self._slot(sequence, entry.start - 1)] if entry.start else oracle.root
        for position in range(entry.start, entry.start + entry.num_tokens):
            before = hash((before, self._input(entry, position)))
            self.kv[self._slot(sequence, position)] = before

    def _input(self, entry: ScheduledSequence, position: int) -> int:
        sequence = entry.sequence
        if position >= len(sequence.token_ids):
            assert entry.num_tokens == 1, "only a decode may feed a token that is still on the device"
            return self.last_token[entry.row]
        return sequence.token_ids[position]

    def _check_prefix(self, entry: ScheduledSequence, num_tokens: int) -> None:
        oracle = self.oracles[entry.sequence.sequence_id]
        for position in range(num_tokens):
            found = self.kv.get(self._slot(entry.sequence, position))
            assert found == oracle.digest(position), f"position {position} is not in its slot"

    def _sample(self, entry: ScheduledSequence) -> int:
        last_slot = self._slot(entry.sequence, entry.start + entry.num_tokens - 1)
        token = self.oracles[entry.sequence.sequence_id].next_token(self.kv[last_slot])
        self.last_token[entry.row] = token
        return token


@dataclass
class Outcome:
    request: Request
    index: int
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None


class SimulatedEngine:
    """The engine loop's order of events, with all that must hold checked after every step."""

    def __init__(self, depth: int = 2, **config: object) -> None:
        self.config = SchedulerConfig(**config)  # type: ignore[arg-type]
        self.depth = depth
        self.now_ns = 1
        self.scheduler = Scheduler(self.config, EOS_TOKEN_IDS, clock=lambda: self.now_ns)
        self.oracles: dict[int, Oracle] = {}
        self.device = SimulatedDevice(self.config, self.oracles)
        self.outcomes: dict[int, Outcome] = {}
        self.live: dict[int, Sequence] = {}
        self.in_flight: deque[tuple[StepPlan, list[int]]] = deque()
        self.cut_off: set[int] = set()  # sequences ended from outside

    def submit(
        self,
        prompt: list[int],
        *,
        n: int = 1,
        priority: int = 0,
        cache_salt: bytes = b"",
        **params: object,
    ) -> Request:
        token_ids = np.array(prompt, np.int32)
        request_id = f"request-{len(self.oracles)}"
        request = Request(
            request_id,
            token_ids,
            SamplingParams(**params),  # type: ignore[arg-type]
            hash_blocks(token_ids, self.config.block_size, cache_salt),
            RequestRecord(request_id),
            n=n,
            priority=priority,
            cache_salt=cache_salt,
        )
        for sequence in self.scheduler.add(request):
            key = sequence.sequence_id
            self.oracles[key] = Oracle(request, sequence.index, shares=self.config.enable_prefix_caching)
            self.outcomes[key] = Outcome(request, sequence.index)
            self.live[key] = sequence
        return request

    def step(self) -> StepPlan | None:
        """One turn of the engine loop."""
        self.now_ns += 1
        must_advance = self._first_in_line()
        plan = self.scheduler.schedule()
        self.scheduler.check()
        if plan is None:
            assert self.in_flight or not self.live, "nothing runs, nothing is in flight, and sequences wait"
        else:
            self._check_plan(plan)
            planned = [entry.sequence for entry in plan.scheduled]
            assert must_advance is None or must_advance in planned, "the first in line was held up"
            self.in_flight.append((plan, self.device.run(plan)))
        if self.in_flight and (plan is None or len(self.in_flight) >= self.depth):
            self._commit(*self.in_flight.popleft())
            self.scheduler.check()
        return plan

    def run(self, max_steps: int = 10_000) -> int:
        """Step until all is done; the number of steps it took."""
        for num_steps in range(max_steps):
            if not self.live and not self.in_flight:
                return num_steps
            self.step()
        raise AssertionError(f"not done after {max_steps} steps")

    def abort(self, request_id: str) -> None:
        self._ended(self.scheduler.abort(request_id), FinishReason.ABORT)

    def finish(self, sequence_id: int) -> None:
        ended = self.scheduler.finish(sequence_id, FinishReason.STOP)
        assert (ended is not None) == (sequence_id in self.live)
        self._ended([ended] if ended else [], FinishReason.STOP)

    def tokens(self, request: Request) -> list[list[int]]:
        """What each of its n sequences has generated."""
        return [self.outcomes[sequence_id].token_ids for sequence_id in request.sequence_ids]

    def check_outcome(self, sequence_id: int) -> None:
        """An ended sequence generated what it would have alone, or its beginning if it was cut off."""
        outcome = self.outcomes[sequence_id]
        token_ids, reason = self.oracles[sequence_id].output(self.config.max_model_len)
        assert outcome.finish_reason is not None
        if (outcome.token_ids, outcome.finish_reason) != (token_ids, reason):
            assert sequence_id in self.cut_off, f"{outcome} but alone {token_ids} {reason}"
            assert outcome.token_ids == token_ids[: len(outcome.token_ids)]

    def check_drained(self) -> None:
        """All is done: nothing is lost, and each sequence ended once, rightly."""
        assert not self.live and not self.scheduler.has_work and not self.scheduler.request_ids
        assert self.scheduler.num_waiting == self.scheduler.num_running == 0
        assert self.scheduler.block_manager.num_used == 0
        for sequence_id in self.outcomes:
            self.check_outcome(sequence_id)

    def _commit(self, plan: StepPlan, tokens: list[int]) -> None:
        for sequence, token_id, reason in self.scheduler.commit(plan, tokens):
            assert sequence.sequence_id in self.live, "something was published after the end"
            outcome = self.outcomes[sequence.sequence_id]
            if token_id == NO_TOKEN:
                assert reason is not None
            else:
                outcome.token_ids.append(token_id)
            assert (
                sequence.token_ids[sequence.num_prompt_tokens :][: len(outcome.token_ids)]
                == outcome.token_ids
            )
            if reason is not None:
                self.live.pop(sequence.sequence_id)
                outcome.finish_reason = reason
                assert sequence.status is SequenceStatus.FINISHED
                assert sequence.num_generated_tokens == len(outcome.token_ids)

    def _ended(self, sequences: list[Sequence], reason: FinishReason) -> None:
        for sequence in sequences:
            self.live.pop(sequence.sequence_id)
            self.outcomes[sequence.sequence_id].finish_reason = reason
            self.cut_off.add(sequence.sequence_id)
        self.scheduler.check()

    def _first_in_line(self) -> Sequence | None:
        """The one that the next step must advance, so that each is served in the end; None if none must.

        It is the first of those that run, or, if none runs, the first that waits. (Decodes may stand still
        under prefill-first, while there are prompts.)
        """
        live = self.live.values()
        candidates = [s for s in live if s.status is SequenceStatus.RUNNING] or list(live)
        if self.config.policy == "prefill-first" or not candidates:
            return None
        first = min(candidates, key=lambda sequence: sequence.order)
        waits_for_commit = first.status is SequenceStatus.WAITING and first.num_scheduled_tokens > 0
        done_but_for_commit = first.num_tokens == first.max_length and first.num_scheduled_tokens > 0
        return None if waits_for_commit or done_but_for_commit else first

    def _check_plan(self, plan: StepPlan) -> None:
        entries = plan.scheduled
        assert 0 < plan.num_tokens <= self.config.max_num_batched_tokens
        assert len({entry.row for entry in entries}) == len({id(entry.sequence) for entry in entries})
        assert len(entries) == len({entry.row for entry in entries}) <= self.config.max_num_seqs
        if self.config.policy == "prefill-first":
            assert not (plan.decodes and plan.chunks)
            return
        planned = {id(entry.sequence) for entry in entries}
        for sequence in self.live.values():
            decodes = sequence.status is SequenceStatus.RUNNING and sequence.num_generated_tokens > 0
            if decodes and sequence.num_cached_tokens >= sequence.num_prefill_tokens:
                in_flight = sequence.num_tokens == sequence.max_length
                assert id(sequence) in planned or in_flight, "a decode was stalled"
