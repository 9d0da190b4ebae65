"""A replica against the real engine loop, both in the same virtual time."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

import engine.loop
from engine.inbox import Command, Submit
from engine.loop import EngineLoop
from engine.plan import StepPlan
from engine.record import EngineCounters, RecentRequests
from engine.recorder import Recorder, entry_of_plan
from engine.request import Request
from engine.runner.launch import StepResult
from engine.scheduler import Scheduler
from loadgen.schedule import ScheduledRequest
from loadgen.simulator.profile import HostCosts, LaunchCost, Line, Profile, max_step_rows
from loadgen.simulator.replica import NEVER, Replica
from loadgen.simulator.step_model import Curve, StepTimer
from loadgen.simulator.step_shape import shape_of_entry, shape_of_plan
from loadgen.simulator.token_times import TokenTimes
from loadgen.simulator.workload import TOKEN, RequestMaker
from tests.support.simulation import make_profile, random_load


class VirtualClock:
    """Stands in for the module `time` in `engine.loop`."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns


@dataclass
class VirtualLaunch:
    clock: VirtualClock
    plan: StepPlan
    device_ns: int
    ready_ns: int
    awaits_tokens = False

    def resume(self) -> None:
        raise AssertionError("nothing here is constrained")

    @property
    def has_ended(self) -> bool:
        return self.ready_ns <= self.clock.now_ns

    def collect(self) -> StepResult:
        self.clock.now_ns = max(self.clock.now_ns, self.ready_ns)
        return StepResult([TOKEN] * len(self.plan.sampled), device_ns=self.device_ns)


class VirtualRunner:
    """Takes the time of the profile's step model: at once where launching blocks, else beside the host."""

    def __init__(self, profile: Profile, clock: VirtualClock) -> None:
        self._timer = timer_of(profile)
        self._blocking = profile.blocking_launch
        self._clock = clock
        self.free_ns = 0
        self.plans: list[list[tuple[str, int, int]]] = []

    def launch(self, plan: StepPlan) -> VirtualLaunch:
        self.plans.append(entries_of(plan))
        device_ns = int(self._timer.seconds(shape_of_plan(plan)) * 1e9)
        self.free_ns = max(self._clock.now_ns, self.free_ns) + device_ns
        if self._blocking:
            self._clock.now_ns = self.free_ns
        return VirtualLaunch(self._clock, plan, device_ns, self.free_ns)


class VirtualInbox:
    """Waiting ends with the running step as well, which the loop sees a little later in truth."""

    def __init__(
        self, clock: VirtualClock, runner: VirtualRunner, arrivals: list[tuple[int, Request]]
    ) -> None:
        self._clock = clock
        self._runner = runner
        self.arrivals = arrivals

    def take(self, wait_s: float = 0.0) -> Iterator[Command]:
        if wait_s:
            now_ns = self._clock.now_ns
            until_ns = now_ns + int(wait_s * 1e9)
            first_ns = self.arrivals[0][0] if self.arrivals else until_ns
            ended_ns = self._runner.free_ns if self._runner.free_ns > now_ns else until_ns
            self._clock.now_ns = max(now_ns, min(first_ns, until_ns, ended_ns))
        while self.arrivals and self.arrivals[0][0] <= self._clock.now_ns:
            yield Submit(self.arrivals.pop(0)[1])


def timer_of(profile: Profile) -> StepTimer:
    return StepTimer(profile.step, max_rows=max_step_rows(profile.limits))


def entries_of(plan: StepPlan) -> list[tuple[str, int, int]]:
    return [(e.sequence.request.request_id, e.start, e.num_tokens) for e in plan.scheduled]


def requests_of(load: list[ScheduledRequest], profile: Profile) -> list[tuple[int, Request]]:
    maker = RequestMaker(profile.limits.block_size, 64)
    return [(scheduled.intended_ns, maker.make(scheduled)) for scheduled in load]


def run_loop(
    profile: Profile, arrivals: list[tuple[int, Request]], monkeypatch: pytest.MonkeyPatch
) -> list[list[tuple[str, int, int]]]:
    clock = VirtualClock()
    monkeypatch.setattr(engine.loop, "time", types.SimpleNamespace(monotonic_ns=clock.monotonic_ns))
    monkeypatch.setattr(engine.loop, "_LOOK_S", 1.0)
    scheduler = Scheduler(profile.limits, frozenset(), clock=clock.monotonic_ns)
    runner = VirtualRunner(profile, clock)
    inbox = VirtualInbox(clock, runner, list(arrivals))
    recorder = Recorder(EngineCounters(), RecentRequests())
    loop = EngineLoop(
        scheduler,
        runner,
        inbox,  # type: ignore[arg-type]
        recorder,
        depth=profile.pipeline_depth,
    )
    while inbox.arrivals or scheduler.has_work or loop.num_in_flight:
        loop.turn(wait_s=1.0)
    return runner.plans


def run_replica(
    profile: Profile,
    load: list[ScheduledRequest],
    arrivals: list[tuple[int, Request]],
    monkeypatch: pytest.MonkeyPatch,
) -> list[list[tuple[str, int, int]]]:
    plans: list[list[tuple[str, int, int]]] = []

    replica = Replica(profile, timer_of(profile), TokenTimes().add)
    schedule = replica.scheduler.schedule

    def noted() -> StepPlan | None:
        plan = schedule()
        replica.scheduler.check()
        if plan is not None:
            plans.append(entries_of(plan))
            entry = entry_of_plan(plan, scheduled_at_ns=0, num_waiting=0, num_running=0, num_blocks_used=0)
            assert shape_of_entry(entry) == shape_of_plan(plan)
        return plan

    monkeypatch.setattr(replica.scheduler, "schedule", noted)
    maker = RequestMaker(profile.limits.block_size, 64)
    for scheduled, (due_ns, request) in zip(load, arrivals, strict=True):
        replica.submit(due_ns, request, maker.output_hashes(scheduled))
    while replica.next_turn_ns != NEVER:
        replica.turn()
    assert replica.prompt_backlog == 0
    assert replica.counts.steps == len(plans)
    return plans


SERVERS = [
    (1, True, {}),
    (2, False, {"itl_target_s": 0.012}),
    (2, False, {"num_blocks": 130}),  # preempts
    (1, False, {"policy": "prefill-first", "enable_prefix_caching": False}),
]


@pytest.mark.parametrize(("depth", "blocking", "limits"), SERVERS)
def test_a_replica_does_what_the_engine_loop_does(
    depth: int, blocking: bool, limits: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no time for the host, every step and every token's time is the same."""
    profile = make_profile(depth=depth, blocking=blocking, **limits)
    load = random_load(60, seed=depth, rate=40)
    for_loop, for_replica = requests_of(load, profile), requests_of(load, profile)
    plans = run_loop(profile, for_loop, monkeypatch)
    assert run_replica(profile, load, for_replica, monkeypatch) == plans
    for scheduled, (_, live), (_, simulated) in zip(load, for_loop, for_replica, strict=True):
        assert simulated.record.token_times_ns == live.record.token_times_ns
        assert len(simulated.record.token_times_ns[0]) == scheduled.output_tokens
        assert simulated.record.num_cached_tokens == live.record.num_cached_tokens
        assert simulated.record.num_preemptions == live.record.num_preemptions
    if "num_blocks" in limits:
        assert sum(live.record.num_preemptions for _, live in for_loop)


@pytest.mark.parametrize(("depth", "blocking", "limits"), SERVERS)
def test_quiet_turns_are_what_they_are_one_by_one(depth: int, blocking: bool, limits: dict) -> None:
    """Every request's times and counts, the noise of each step, and the scheduler's own state."""
    profile = make_profile(depth=depth, blocking=blocking, **limits)
    decode_only = replace(
        profile.step.decode_only,
        slowdown=1e-4,
        noise=[0.7, 1.0, 1.1, 1.3],
        longest_context=Curve([2, 8], [1e-6, 3e-6]),
    )
    timer = StepTimer(replace(profile.step, decode_only=decode_only), max_rows=256)
    load = random_load(40, seed=depth, rate=25)
    ends = []
    for quiet in (False, True):
        replica = Replica(profile, timer.with_noise(3), TokenTimes().add)
        arrivals = requests_of(load, profile)
        for due_ns, request in arrivals:
            replica.submit(due_ns, request, [])
        num_turns = 0
        while replica.next_turn_ns != NEVER:
            replica.turn()
            num_turns += 1
            if quiet:
                replica.take_quiet_turns(replica.next_turn_ns + 100_000_000)
                replica.scheduler.check()
        assert num_turns < replica.counts.steps if quiet else num_turns >= replica.counts.steps
        records = [replace(request.record, sequence_ids=[]) for _, request in arrivals]
        blocks = replica.scheduler.block_manager.states().tolist()
        ends.append((records, replica.counts, replica.now_ns, blocks))
    assert ends[0] == ends[1]


def test_the_host_costs_what_the_profile_says() -> None:
    """One request alone, at depth 1: each step and each pause is paid once."""
    host = HostCosts(
        schedule=Line(0.0, 0.001),
        launch_decodes=LaunchCost(Line(0.002)),
        launch_chunks=LaunchCost(Line(0.001, 0.001)),
        commit=Line(0.003),
        pause_s=0.004,
    )
    times: list[int] = []
    profile = make_profile(depth=1, host=host)
    replica = Replica(profile, timer_of(profile), lambda settled_ns, committed: times.extend(settled_ns))
    load = [ScheduledRequest(0, 0, 20, 3, 0)]
    request = RequestMaker(16, None).make(load[0])
    replica.submit(5_000_000, request, [])
    while replica.next_turn_ns != NEVER:
        replica.turn()
    prompt_s = 0.004 + 0.001 + (0.02 - 0.001) * 19 / 255 + 1e-4 + 20 * 10 * 1e-9
    assert times[0] == pytest.approx((0.005 + 0.001 + prompt_s) * 1e9, rel=1e-6)
    decode_s = 0.004 + 21e-7
    assert times[1] - times[0] == pytest.approx((0.003 + 0.004 + 0.001 + decode_s) * 1e9, rel=1e-6)
