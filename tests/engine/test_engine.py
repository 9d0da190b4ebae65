"""The engine thread behind its handle: bounds, health, death, drain and shutdown."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from queue import SimpleQueue

import numpy as np
import pytest

from engine.block_manager import hash_blocks
from engine.config import EngineConfig, SchedulerConfig
from engine.engine import Engine
from engine.handle import EngineUnavailableError, PromptTooLongError, QueueFullError
from engine.plan import StepPlan
from engine.record import EngineCounters, RecentRequests, RequestRecord
from engine.recorder import Recorder
from engine.request import NO_TOKEN, Request, StepOutput
from engine.runner.launch import StepResult
from engine.sampling_params import ParameterError, SamplingParams
from engine.scheduler import Scheduler
from model.config import ModelConfig

LIMITS = SchedulerConfig(
    max_num_seqs=2, max_num_batched_tokens=16, max_model_len=64, block_size=4, num_blocks=32
)
MODEL = ModelConfig("LlamaForCausalLM", 100, 8, 8, 1, 1, 1, 8, 64, 1e-5, 1e4)


class FakeRunner:
    """Samples token 7 for everyone; a test may hold it back or make it fail."""

    def __init__(self) -> None:
        self.may_run = threading.Event()
        self.may_run.set()
        self.error: Exception | None = None

    def launch(self, plan: StepPlan) -> "FakeLaunch":
        return FakeLaunch(self, len(plan.sampled))


class FakeLaunch:
    def __init__(self, runner: FakeRunner, num_sampled: int) -> None:
        self.runner, self.num_sampled = runner, num_sampled

    awaits_tokens = False
    has_ended = False

    def resume(self) -> None:
        raise AssertionError("nothing is constrained")

    def collect(self) -> StepResult:
        self.runner.may_run.wait(20)
        if self.runner.error is not None:
            raise self.runner.error
        return StepResult([7] * self.num_sampled)


class Rig:
    def __init__(self, *, held: bool = False, **options: object) -> None:
        """`held`: no step comes to an end, and the thread waits to be started."""
        self.runner = FakeRunner()
        if held:
            self.runner.may_run.clear()
        self.recorder = Recorder(EngineCounters(), RecentRequests())
        config = replace(EngineConfig(pipeline_depth=2, check_invariants=True), **options)
        self.engine = Engine(config, MODEL, Scheduler(LIMITS, frozenset()), self.runner, self.recorder)
        self.steps: SimpleQueue[StepOutput] = SimpleQueue()
        self.deaths: SimpleQueue[BaseException] = SimpleQueue()
        self.engine.subscribe(self.steps.put, self.deaths.put)
        if not held:
            self.engine.start()

    def submit(self, name: str, length: int = 5, max_tokens: int | None = 4) -> Request:
        prompt = np.arange(length, dtype=np.int32)
        params = SamplingParams(max_tokens=max_tokens)
        request = Request(name, prompt, params, hash_blocks(prompt, 4), RequestRecord(name, arrived_ns=1))
        self.engine.submit(request)
        return request

    def take_until_end(self, request: Request) -> list[int]:
        (sequence_id,) = request.sequence_ids
        tokens = []
        while True:
            output = self.steps.get(timeout=10)
            for i, other in enumerate(output.sequence_ids):
                if other == sequence_id:
                    tokens.append(output.token_ids[i])
                    if output.finish_reasons[i] is not None:
                        return tokens


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(*, held: bool = False, **options: object) -> Rig:
        rigs.append(Rig(held=held, **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.runner.may_run.set()
        rig.engine.shutdown()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_request_runs_to_its_end_and_is_recorded(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    request = rig.submit("a")
    assert rig.take_until_end(request) == [7] * 4
    record = rig.engine.recent_requests.get("a")
    assert record is request.record
    eventually(lambda: record.finished_ns > 0)
    times = record.token_times_ns[0]
    assert record.queued_ns <= record.first_scheduled_ns <= record.first_token_ns == times[0]
    assert times == sorted(times)
    assert len(times) == 4
    assert record.finish_reasons == ["length"]
    assert rig.engine.counters.finished_requests["length"] == 1
    eventually(lambda: rig.engine.stats().num_running == 0)
    assert rig.engine.stats().kv_usage == 0
    assert rig.engine.health().healthy


def test_counters_know_of_a_token_before_anybody_is_told(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    counted = []

    def count(output: StepOutput) -> None:
        counted.append(rig.engine.counters.generation_tokens)

    rig.engine.subscribe(count, lambda error: None)
    rig.take_until_end(rig.submit("a"))
    eventually(lambda: len(counted) == 4)
    assert counted == [1, 2, 3, 4]


def test_what_can_never_fit_is_refused_at_the_door(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    for length, max_tokens in ((65, 0), (64, 1), (64, None)):
        with pytest.raises(PromptTooLongError, match=f"{length} tokens"):
            rig.submit("long", length, max_tokens)
    exact = rig.submit("exact", 64, 0)
    assert rig.take_until_end(exact) == [NO_TOKEN]
    assert rig.take_until_end(rig.submit("fits", 63, None)) == [7]


def test_a_token_that_the_model_lacks_is_refused_at_the_door(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    prompt = np.array([5, 100], dtype=np.int32)  # the model has 100 tokens
    request = Request("x", prompt, SamplingParams(), hash_blocks(prompt, 4), RequestRecord("x"))
    with pytest.raises(ParameterError, match="no token 100"):
        rig.engine.submit(request)
    assert rig.take_until_end(rig.submit("next")) == [7] * 4


def test_the_queue_is_bounded(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(held=True, max_queue=5)
    accepted = [rig.submit(f"r{i}") for i in range(2)]
    rig.engine.start()
    eventually(lambda: rig.engine.stats().num_running == 2)
    accepted += [rig.submit(f"q{i}") for i in range(5)]
    with pytest.raises(QueueFullError) as full:
        rig.submit("one too many")
    assert full.value.retry_after_s > 0
    rig.runner.may_run.set()
    for request in accepted:
        eventually(lambda request=request: request.record.finished_ns > 0)
    rig.submit("later")


def test_aborts_reach_waiting_and_running_and_free_everything(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(held=True)
    requests = [rig.submit(f"r{i}", max_tokens=40) for i in range(6)]
    rig.engine.start()
    eventually(lambda: rig.engine.stats().num_running == 2)
    for i in (5, 0, 3):
        rig.engine.abort(f"r{i}")
    rig.engine.abort("never heard of")
    rig.engine.finish_sequence(requests[1].sequence_ids[0])
    rig.runner.may_run.set()
    for i in (1, 2, 4):
        eventually(lambda i=i: requests[i].record.finished_ns > 0)
    reasons = [request.record.finish_reasons[0] for request in requests]
    assert reasons == ["abort", "stop", "length", "abort", "length", "abort"]
    eventually(lambda: rig.engine.stats().num_blocks_used == 0)


def test_who_gives_up_waiting_for_the_cache_to_be_emptied_harms_nobody(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(held=True)
    assert rig.engine.forget_prefixes().cancel()
    rig.runner.may_run.set()
    rig.engine.start()
    assert rig.take_until_end(rig.submit("a")) == [7] * 4
    assert rig.engine.forget_prefixes().result(timeout=10) > 0
    assert rig.engine.health().healthy


def test_a_death_is_told_and_refuses_what_comes_after(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.runner.error = RuntimeError("the device fell off")
    rig.submit("victim")
    assert "fell off" in str(rig.deaths.get(timeout=10))
    health = rig.engine.health()
    assert (health.healthy, health.reason) == (False, "engine_dead")
    with pytest.raises(EngineUnavailableError) as refusal:
        rig.submit("late")
    assert refusal.value.code == "engine_dead"


def test_a_hung_step_shows_in_the_health(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(stall_timeout=0.2)
    rig.runner.may_run.clear()
    request = rig.submit("stuck")
    eventually(lambda: rig.engine.health().reason == "engine_stalled")
    rig.runner.may_run.set()
    rig.take_until_end(request)
    eventually(lambda: rig.engine.health().healthy)


def test_draining_finishes_what_was_accepted_and_refuses_the_rest(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    request = rig.submit("in flight", max_tokens=30)
    rig.engine.drain()
    with pytest.raises(EngineUnavailableError) as refusal:
        rig.submit("late")
    assert refusal.value.code == "shutting_down"
    assert rig.engine.health().reason == "shutting_down"
    assert len(rig.take_until_end(request)) == 30


def test_shutdown_ends_what_still_runs_as_aborted(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.runner.may_run.clear()
    request = rig.submit("cut off", max_tokens=None)
    eventually(lambda: rig.engine.stats().num_running == 1)
    threading.Timer(0.1, rig.runner.may_run.set).start()
    rig.engine.shutdown()
    assert request.record.finish_reasons == ["abort"]
    assert rig.take_until_end(request)[-1] == NO_TOKEN  # its stream is told
    assert rig.engine.stats().num_running == 0
