"""Replicas behind a router, in one virtual time: arrivals and turns happen in their order."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from engine.committed import CommittedStep
from engine.record import RequestRecord
from loadgen.garbage import no_collections
from loadgen.schedule import ScheduledRequest
from loadgen.simulator.admission import Admission, admit_all
from loadgen.simulator.profile import Profile, max_step_rows
from loadgen.simulator.replica import NEVER, Replica
from loadgen.simulator.routing import Router
from loadgen.simulator.step_model import StepTimer
from loadgen.simulator.token_times import TokenTimes
from loadgen.simulator.workload import RequestMaker


@dataclass(slots=True)
class Outcome:
    """What became of one request. Times count from the start of the run; those of tokens are the client's."""

    scheduled: ScheduledRequest
    due_ns: int
    replica: int
    record: RequestRecord
    refused: str | None = None  # why no replica took it


class Fleet:
    """`run` sends a load to equal replicas; each outcome is told as its request ends.

    The router learns of an answer when the step that ended it is settled, so it may be a step ahead of time.
    """

    def __init__(
        self,
        profile: Profile,
        num_replicas: int,
        router: Router,
        on_outcome: Callable[[Outcome], None],
        *,
        trace_block_size: int | None = None,
        admission: Admission = admit_all,
        noise_seed: int | None = None,
    ) -> None:
        timer = StepTimer(profile.step, max_rows=max_step_rows(profile.limits))
        self.replicas = [
            Replica(
                profile,
                timer.with_noise(None if noise_seed is None else noise_seed + place),
                partial(self._take, TokenTimes()),
            )
            for place in range(num_replicas)
        ]
        self._front_end_free_ns = [0] * num_replicas  # each prepares one prompt after the other
        self._max_model_len = profile.limits.max_model_len
        self._costs = profile.front_end
        self._router = router
        self._admission = admission
        self._on_outcome = on_outcome
        self._maker = RequestMaker(profile.limits.block_size, trace_block_size)
        self._loads = [0] * num_replicas  # unanswered requests
        self._open: dict[str, Outcome] = {}  # by request id
        self._arrivals: list[tuple[int, int, ScheduledRequest]] = []  # a heap of (due, index, request)
        self._turns: list[tuple[int, int]] = []  # a heap of (when, replica)
        self._followers: defaultdict[int, list[ScheduledRequest]] = defaultdict(list)  # by index

    def run(self, requests: Sequence[ScheduledRequest]) -> None:
        """Returns when all have ended."""
        for scheduled in requests:
            if scheduled.follows and scheduled.previous is not None:
                self._followers[scheduled.previous.index].append(scheduled)
            else:
                self._arrivals.append((scheduled.intended_ns, scheduled.index, scheduled))
        heapq.heapify(self._arrivals)
        with no_collections():
            self._run()

    def _run(self) -> None:
        while self._arrivals or self._turns:
            if self._turns and self._turns[0][0] < self._next_arrival_ns:
                self._advance()
            else:
                due_ns, _, scheduled = heapq.heappop(self._arrivals)
                self._send(scheduled, due_ns)

    @property
    def _next_arrival_ns(self) -> int:
        return self._arrivals[0][0] if self._arrivals else NEVER

    def _advance(self) -> None:
        """Let the replica whose turn is next take turns for as long as it is the next."""
        turns = self._turns
        place = turns[0][1]
        replica = self.replicas[place]
        others_ns = min(turns[1:3], default=(NEVER, 0))[0]
        while True:
            replica.turn()
            # These end no request, so only arrivals matter to them, which the end of another one may cause.
            replica.take_quiet_turns(
                min(self._next_arrival_ns, others_ns + 1) if self._followers else self._next_arrival_ns
            )
            next_ns = replica.next_turn_ns
            if next_ns > others_ns or next_ns >= self._next_arrival_ns:
                break
        if next_ns == NEVER:
            heapq.heappop(turns)
        else:
            heapq.heapreplace(turns, (next_ns, place))

    def _send(self, scheduled: ScheduledRequest, due_ns: int) -> None:
        request = self._maker.make(scheduled)
        place = self._router.choose(self._loads, request.block_hashes)
        replica = self.replicas[place]
        record = request.record
        record.arrived_ns = due_ns
        record.tokenized_ns = self._prepared_ns(place, due_ns, scheduled.input_tokens)
        outcome = Outcome(scheduled, due_ns, place, record)
        if scheduled.input_tokens >= self._max_model_len:
            outcome.refused = "context_length"
        elif not self._admission(replica, scheduled):
            outcome.refused = "http_429"
        if outcome.refused is not None:
            self._conclude(outcome, due_ns)
            return
        self._open[request.request_id] = outcome
        self._loads[place] += 1
        was_idle = replica.next_turn_ns == NEVER
        replica.submit(record.tokenized_ns, request, self._maker.output_hashes(scheduled))
        if was_idle:
            heapq.heappush(self._turns, (replica.next_turn_ns, place))

    def _prepared_ns(self, place: int, due_ns: int, input_tokens: int) -> int:
        """When the prompt is ready for the engine: parsing and tokenizing hold the one interpreter."""
        begun_ns = max(due_ns, self._front_end_free_ns[place])
        self._front_end_free_ns[place] = begun_ns + self._costs.before.ns(input_tokens)
        return self._front_end_free_ns[place]

    def _take(self, token_times: TokenTimes, settled_ns: list[int], committed: CommittedStep) -> None:
        """Steps that brought the same: note when clients have their tokens, and tell of what has ended."""
        delivery_ns = self._costs.delivery.ns(len(committed))
        token_times.add([now_ns + delivery_ns for now_ns in settled_ns], committed)
        for sequence, reason in committed.ended:
            record = sequence.request.record
            record.finished_ns = settled_ns[-1]
            record.finish_reasons = [reason.value]
            outcome = self._open.pop(record.request_id)
            self._loads[outcome.replica] -= 1
            self._conclude(outcome, settled_ns[-1] + delivery_ns)

    def _conclude(self, outcome: Outcome, ended_ns: int) -> None:
        self._on_outcome(outcome)
        for follower in self._followers.pop(outcome.scheduled.index, ()):
            due_ns = ended_ns + follower.intended_ns
            heapq.heappush(self._arrivals, (due_ns, follower.index, follower))
