"""One server in virtual time: the real scheduler, and the turns of `engine.loop` with a clock that is told.

No rule about what runs is made here. A turn obeys the inbox, plans, launches, and settles the oldest step, as
`EngineLoop.turn` does; what differs is where the durations come from.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from engine.committed import CommittedStep
from engine.pacer import Pacer
from engine.plan import StepPlan
from engine.record.step_log import WAITED_NS
from engine.request import Request
from engine.scheduler import Scheduler
from loadgen.simulator.exertion import Exertion
from loadgen.simulator.profile import Profile
from loadgen.simulator.step_model import StepTimer
from loadgen.simulator.step_shape import StepShape, shape_of_plan
from loadgen.simulator.workload import TOKEN

NEVER = 1 << 62


class _HostTimes(NamedTuple):
    """What the host takes for a step of some shape."""

    schedule_ns: int
    launch_ns: int
    lead_ns: int  # from the start of the launch until the device has what it computes for long


@dataclass(slots=True)
class _InFlight:
    plan: StepPlan
    shape: StepShape
    launched_ns: int
    device_ns: int  # a duration
    ready_ns: int


@dataclass(slots=True)
class ReplicaCounts:
    steps: int = 0
    busy_ns: int = 0  # of the device
    preemptions: int = 0


class Replica:
    """`on_steps` is told of settled steps that brought the same: when the tokens of each were on the host."""

    def __init__(
        self,
        profile: Profile,
        timer: StepTimer,
        on_steps: Callable[[list[int], CommittedStep], None],
    ) -> None:
        limits = profile.limits
        self.scheduler = Scheduler(limits, frozenset(), clock=lambda: self.now_ns)
        self.now_ns = 0  # of the engine thread
        self.counts = ReplicaCounts()
        self.next_turn_ns = NEVER  # when the next turn plans
        self.prompt_backlog = 0  # prompt tokens of requests that wait for their first token
        self._timer = timer
        self._exertion = Exertion()
        self._host = profile.host
        self._padding = profile.step.padding
        self._pause_ns = int(profile.host.pause_s * 1e9)
        self._depth = profile.pipeline_depth
        budget = self.scheduler.chunk_budget
        self._pacer = Pacer(budget) if budget is not None and self._depth > 1 else None
        self._plan_from_ns = 0
        self._blocking = profile.blocking_launch
        self._on_steps = on_steps
        self._inbox: list[tuple[int, Request, list[bytes]]] = []  # by the time when each is put
        self._in_flight: deque[_InFlight] = deque()
        self._device_free_ns = 0
        self._ended_ns = 0  # of the last step that was collected, if it had to be waited for
        self._tokens = np.full(limits.max_num_seqs, TOKEN)

    def submit(self, at_ns: int, request: Request, output_hashes: list[bytes]) -> None:
        """Put a request in the inbox, some time from now on, with hashes of the blocks that it will fill."""
        self.prompt_backlog += len(request.prompt_token_ids)
        insort(self._inbox, (at_ns, request, output_hashes), key=itemgetter(0))
        self.next_turn_ns = self._plans_next_ns()

    def _plans_next_ns(self) -> int:
        """While there is work, as soon as the pacer lets it; else with a request."""
        if self._in_flight or self.scheduler.has_work:
            return max(self.now_ns, self._plan_from_ns)
        return max(self.now_ns, self._inbox[0][0]) if self._inbox else NEVER

    def turn(self) -> None:
        """One pass, as `EngineLoop.turn`."""
        self.now_ns = self.next_turn_ns
        while self._inbox and self._inbox[0][0] <= self.now_ns:
            self._obey(*self._inbox.pop(0))
        plan = self.scheduler.schedule()
        if plan is not None:
            self.counts.preemptions += plan.num_preempted
            shape = shape_of_plan(plan)
            seconds = partial(self._timer.seconds, shape)
            self._in_flight.append(self._launch(plan, shape, self._host_times(shape), seconds))
        if self._in_flight and (plan is None or len(self._in_flight) >= self._depth):
            step = self._in_flight.popleft()
            self._collect(step)
            self._tell(self._commit(step.plan))
        self._end_turn()

    def take_quiet_turns(self, until_ns: int) -> None:
        """The turns that begin before `until_ns`, as long as they only bring the same sequences a token each.

        Each takes its time as in `turn`; only the scheduler and `on_steps` are told of all of them together.
        """
        in_flight = self._in_flight
        if len(in_flight) != self._depth - 1:
            return
        num_turns, decodes = self.scheduler.quiet_steps(in_flight[0].plan if in_flight else None)
        if self._inbox:
            until_ns = min(until_ns, self._inbox[0][0])
        if not num_turns or self.next_turn_ns >= until_ns:
            return
        settled_ns = self._time_quiet_turns(shape_of_plan(StepPlan(-1, decodes)), num_turns, until_ns)
        plan = self.scheduler.pass_quiet_steps(len(settled_ns), TOKEN)
        for step in in_flight:
            step.plan = plan
        tokens = self._tokens[: len(decodes)]
        self._on_steps(settled_ns, CommittedStep.of_decodes(decodes.group, tokens, {}, []))

    def _time_quiet_turns(self, shape: StepShape, num_turns: int, until_ns: int) -> list[int]:
        """When each one's tokens were on the host; `shape` is the first one's.

        What `turn` does with the clocks, in one loop over local names: nine steps in ten come by here.
        """
        schedule_ns, launch_ns, lead_ns = self._host_times(shape)
        settling_ns = self._host.commit.ns(shape.decode_rows) + self._pause_ns
        price, exertion_before = self._timer.decoding_on(shape), self._exertion.before
        pacer, budget, num_decodes = self._pacer, self.scheduler.chunk_budget, shape.decode_rows
        blocking = self._blocking
        turn_ns, plan_from_ns, free_ns = self.next_turn_ns, self._plan_from_ns, self._device_free_ns
        in_flight = deque((step.ready_ns, step.device_ns) for step in self._in_flight)
        busy_ns = 0
        settled_ns: list[int] = []
        while len(settled_ns) < num_turns and turn_ns < until_ns:
            launched_ns = turn_ns + schedule_ns
            now_ns = launched_ns + launch_ns
            if blocking:
                begun_ns = now_ns
                now_ns = free_ns = begun_ns + int(price(0.0) * 1e9)
            else:
                begun_ns = launched_ns if launched_ns > free_ns else free_ns
                led_ns = launched_ns + lead_ns
                computing_ns = begun_ns if begun_ns > led_ns else led_ns
                free_ns = computing_ns + int(price(exertion_before(computing_ns)) * 1e9)
            busy_ns += free_ns - begun_ns
            in_flight.append((free_ns, free_ns - begun_ns))
            if pacer is not None:
                pacer.observe((now_ns - turn_ns) / 1e9)
            ready_ns, device_ns = in_flight.popleft()
            ended_ns = ready_ns if ready_ns - now_ns > WAITED_NS else 0
            if now_ns < ready_ns:
                now_ns = ready_ns
            if budget is not None:
                budget.observe(num_decodes, 0, device_ns / 1e9)
            settled_ns.append(now_ns)
            turn_ns = now_ns + settling_ns
            if pacer is not None:
                slack_ns = int(pacer.slack_s(num_decodes, 0) * 1e9)
                plan_from_ns = slack_ns + (launched_ns if launched_ns > ended_ns else ended_ns)
                plan_from_ns = free_ns if plan_from_ns > free_ns else plan_from_ns
                turn_ns = turn_ns if turn_ns > plan_from_ns else plan_from_ns
        self.now_ns = settled_ns[-1] + settling_ns
        self.next_turn_ns, self._plan_from_ns = turn_ns, plan_from_ns
        self._device_free_ns, self._ended_ns = free_ns, ended_ns
        self.counts.steps += len(settled_ns)
        self.counts.busy_ns += busy_ns
        for step, (ready_ns, device_ns) in zip(self._in_flight, in_flight, strict=True):
            step.launched_ns, step.ready_ns, step.device_ns = launched_ns, ready_ns, device_ns
        return settled_ns

    def _end_turn(self) -> None:
        self.now_ns += self._pause_ns
        if self._in_flight and self._pacer is not None:
            self._plan_from_ns = self._awaited_ns(self._in_flight[-1], self._pacer)
        self.next_turn_ns = self._plans_next_ns()

    def _awaited_ns(self, newest: _InFlight, pacer: Pacer) -> int:
        """When the next step has to be planned lest the device wait for it; no later than the newest ends."""
        begun_ns = max(newest.launched_ns, self._ended_ns)
        slack_s = pacer.slack_s(newest.shape.decode_rows, newest.shape.prompt_rows)
        return min(begun_ns + int(slack_s * 1e9), newest.ready_ns)

    def _obey(self, put_ns: int, request: Request, output_hashes: list[bytes]) -> None:
        request.record.queued_ns = self.now_ns
        for sequence in self.scheduler.add(request):
            sequence.block_hashes += output_hashes

    def _host_times(self, shape: StepShape) -> _HostTimes:
        num_sequences = shape.num_sequences
        cost = self._host.launch(shape, self._padding)
        return _HostTimes(
            self._host.schedule.ns(num_sequences), cost.seconds.ns(num_sequences), int(cost.lead_s * 1e9)
        )

    def _launch(
        self, plan: StepPlan, shape: StepShape, times: _HostTimes, seconds: Callable[[float], float]
    ) -> _InFlight:
        """`seconds` says how long the device computes the step, given its exertion."""
        planned_ns = self.now_ns
        launched_ns = planned_ns + times.schedule_ns
        self.now_ns = launched_ns + times.launch_ns
        if self._blocking:  # launching computes the step
            begun_ns = self.now_ns
            self.now_ns = ready_ns = begun_ns + int(seconds(0.0) * 1e9)
        else:  # a free device begins at once, and waits for what is launched later
            begun_ns = max(launched_ns, self._device_free_ns)
            computing_ns = max(begun_ns, launched_ns + times.lead_ns)
            ready_ns = computing_ns + int(seconds(self._exertion.before(computing_ns)) * 1e9)
            if shape.num_chunks:
                self._exertion.add(computing_ns, ready_ns)
        if self._pacer is not None:
            self._pacer.observe((self.now_ns - planned_ns) / 1e9)
        self._device_free_ns = ready_ns
        self.counts.steps += 1
        self.counts.busy_ns += ready_ns - begun_ns
        return _InFlight(plan, shape, launched_ns, ready_ns - begun_ns, ready_ns)

    def _collect(self, step: _InFlight) -> None:
        waited = step.ready_ns - self.now_ns > WAITED_NS
        self.now_ns = max(self.now_ns, step.ready_ns)
        budget = self.scheduler.chunk_budget
        if budget is not None:
            budget.observe(step.shape.decode_rows, step.shape.prompt_rows, step.device_ns / 1e9)
        self._ended_ns = self.now_ns if waited else 0

    def _commit(self, plan: StepPlan) -> CommittedStep:
        committed = self.scheduler.commit(plan, self._tokens)
        for chunk in plan.chunks:
            record = chunk.sequence.request.record
            if chunk.samples and not record.first_token_ns:
                record.first_token_ns = self.now_ns
                self.prompt_backlog -= chunk.sequence.num_prompt_tokens
        return committed

    def _tell(self, committed: CommittedStep) -> None:
        self._on_steps([self.now_ns], committed)
        self.now_ns += self._host.commit.ns(len(committed))
