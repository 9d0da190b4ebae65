"""The next step is planned late in the running one, and holds what has come until then."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest

from engine.block_manager import hash_blocks
from engine.chunk_budget import ChunkBudget
from engine.config import SchedulerConfig
from engine.inbox import Inbox, Stop, Submit
from engine.loop import EngineLoop
from engine.pacer import Pacer
from engine.plan import StepPlan
from engine.record import EngineCounters, RecentRequests, RequestRecord
from engine.recorder import Recorder
from engine.request import Request
from engine.runner.launch import StepResult
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler

STEP_S = 0.3


def learnt_budget(target_s: float = 1.0) -> ChunkBudget:
    budget = ChunkBudget(target_s)
    for _ in range(100):
        budget.observe(1, 0, STEP_S)
    return budget


def test_slack_leaves_room_for_the_host() -> None:
    pacer = Pacer(learnt_budget())
    for _ in range(100):
        pacer.observe(host_s=0.02)
    assert 0.5 * STEP_S < pacer.slack_s(1, 0) <= STEP_S - 2 * 0.02
    for _ in range(100):
        pacer.observe(host_s=0.2)
    assert pacer.slack_s(1, 0) <= 0


def test_a_full_launch_queue_teaches_it_little() -> None:
    """The device has enough to do while the host waits for room in its queue."""
    pacer = Pacer(learnt_budget())
    for step in range(100):
        pacer.observe(host_s=0.1 if step % 4 else 0.001)
    assert pacer.slack_s(1, 0) > 0.8 * STEP_S


def test_short_steps_are_not_waited_for() -> None:
    budget = ChunkBudget(0.03)
    for _ in range(100):
        budget.observe(1, 0, 0.0007)
    assert Pacer(budget).slack_s(1, 0) == 0


@dataclass
class SlowLaunch:
    ends_at: float
    num_sampled: int
    awaits_tokens: bool = False

    def resume(self) -> None:
        raise AssertionError("nothing is constrained")

    @property
    def has_ended(self) -> bool:
        return time.monotonic() >= self.ends_at

    def collect(self) -> StepResult:
        time.sleep(max(0.0, self.ends_at - time.monotonic()))
        return StepResult([5] * self.num_sampled, device_ns=int(STEP_S * 1e9))


class SlowRunner:
    """A device that takes `step_s` for each step, one after the other."""

    def __init__(self, step_s: float = STEP_S) -> None:
        self.step_s = step_s
        self.plans: list[StepPlan] = []
        self.launched = threading.Semaphore(0)
        self.free_at = 0.0

    def launch(self, plan: StepPlan) -> SlowLaunch:
        self.plans.append(plan)
        self.free_at = max(self.free_at, time.monotonic()) + self.step_s
        self.launched.release()
        return SlowLaunch(self.free_at, len(plan.sampled))


def request(name: str) -> Request:
    prompt = np.arange(3, 9, dtype=np.int32)
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    return Request(name, prompt, params, hash_blocks(prompt, 4, name.encode()), RequestRecord(name))


def make_scheduler(itl_target_s: float) -> Scheduler:
    config = SchedulerConfig(
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=64,
        block_size=4,
        num_blocks=64,
        itl_target_s=itl_target_s,
    )
    return Scheduler(config, frozenset())


@pytest.mark.parametrize(("itl_target_s", "step_of_the_second"), [(1.0, 1), (0.0, 2)])
def test_an_arrival_during_a_step_is_in_the_next_one(itl_target_s: float, step_of_the_second: int) -> None:
    """Without pacing, the step after the running one was planned before the arrival."""
    scheduler = make_scheduler(itl_target_s)
    if scheduler.chunk_budget is not None:
        scheduler.chunk_budget = learnt_budget(itl_target_s)
        scheduler.chunk_budget._s_per_token = STEP_S / 6
    runner, inbox = SlowRunner(), Inbox()
    loop = EngineLoop(scheduler, runner, inbox, Recorder(EngineCounters(), RecentRequests()), depth=2)
    thread = threading.Thread(target=loop.run)
    inbox.put(Submit(request("first")))
    thread.start()
    assert runner.launched.acquire(timeout=30)
    time.sleep(STEP_S / 6)
    inbox.put(Submit(request("second")))
    for _ in range(2):
        assert runner.launched.acquire(timeout=30)
    inbox.put(Stop())
    thread.join()
    names = [{entry.sequence.request.request_id for entry in plan.chunks} for plan in runner.plans]
    assert names.index({"second"}) == step_of_the_second


def test_a_step_that_ends_early_is_not_waited_for() -> None:
    """After many slow prompts steps are expected to take an hour; this one takes a moment."""
    scheduler = make_scheduler(itl_target_s=1.0)
    assert scheduler.chunk_budget is not None
    scheduler.chunk_budget._tokens_per_s = 6 / 3600
    runner, inbox = SlowRunner(step_s=0.02), Inbox()
    loop = EngineLoop(scheduler, runner, inbox, Recorder(EngineCounters(), RecentRequests()), depth=2)
    ended = threading.Event()
    loop.on_step.append(lambda output: ended.set() if output.finish_reasons[-1] is not None else None)
    thread = threading.Thread(target=loop.run, daemon=True)
    inbox.put(Submit(request("only")))
    thread.start()
    assert ended.wait(timeout=30)
    inbox.put(Stop())
    thread.join()
