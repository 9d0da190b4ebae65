"""Decodes as columns: who takes part, and that tokens are there when somebody asks for them at last."""

from __future__ import annotations

import random
from collections import defaultdict, deque

import numpy as np
import pytest

from engine.block_manager import hash_blocks
from engine.config import SchedulerConfig
from engine.decode_steps import DecodeSteps
from engine.plan import StepPlan
from engine.record import RequestRecord
from engine.request import NO_TOKEN, FinishReason, Request
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler


def make_request(name: str, num_tokens: int, block_size: int, **params: object) -> Request:
    prompt = np.arange(100, 100 + num_tokens, dtype=np.int32)
    hashes = hash_blocks(prompt, block_size)
    return Request(name, prompt, SamplingParams(**params), hashes, RequestRecord(name))  # type: ignore[arg-type]


def make_scheduler(block_size: int, **limits: int) -> Scheduler:
    settings = {
        "max_num_seqs": 6,
        "max_num_batched_tokens": 20,
        "max_model_len": 60,
        "num_blocks": 64,
        **limits,
    }
    return Scheduler(SchedulerConfig(block_size=block_size, **settings), frozenset({0}))


def test_a_group_is_one_object_until_somebody_comes_or_goes() -> None:
    scheduler = make_scheduler(block_size=4)
    scheduler.add(make_request("a", 3, 4, max_tokens=40))
    (short,) = scheduler.add(make_request("b", 5, 4, max_tokens=9))
    groups, starts = [], []
    for step in range(12):
        if step == 5:
            scheduler.finish(short.sequence_id, FinishReason.STOP)
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.commit(plan, [1] * len(plan.sampled))
        groups.append(plan.decodes.group)
        starts.append(plan.decodes.starts.tolist())
    assert [len(group) for group in groups] == [0] + [2] * 4 + [1] * 7
    assert len(set(map(id, groups[1:5]))) == len(set(map(id, groups[5:]))) == 1
    assert starts[1:6] == [[3, 5], [4, 6], [5, 7], [6, 8], [7]]


def test_whoever_counts_the_deferred_takes_no_tokens_from_the_decode_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other threads count them, and two that took the same tokens would have a sequence hold them twice."""
    scheduler = make_scheduler(block_size=4, max_num_seqs=1)
    prompt = np.arange(5, dtype=np.int32)
    scheduler.add(
        Request("a", prompt, SamplingParams(max_tokens=9), hash_blocks(prompt, 4), RequestRecord("a"), n=2)
    )
    with monkeypatch.context() as patches:
        patches.setattr(DecodeSteps, "tokens_since", None)
        deferred = []
        for _ in range(3):
            plan = scheduler.schedule()
            assert plan is not None
            deferred.append(scheduler.num_deferred)
            scheduler.commit(plan, [1] * len(plan.sampled))
        assert (deferred, scheduler.num_waiting, scheduler.num_deferred) == ([1, 0, 0], 1, 0)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 400), (3, 26), (16, 5)])
def test_tokens_that_nobody_looks_at_are_right_in_the_end(
    depth: int, block_size: int, num_blocks: int
) -> None:
    """Checking invariants reads all tokens after each step, so here nothing is checked until an end."""
    rng = random.Random(block_size)
    scheduler = make_scheduler(block_size, num_blocks=num_blocks)
    in_flight: deque[StepPlan] = deque()
    got: dict[int, list[int]] = defaultdict(list)
    live, num_ended, num_preemptions = {}, 0, 0
    for step in range(800):
        if len(live) < 12 and rng.random() < 0.3:
            request = make_request(f"{step}", rng.randint(1, 30), block_size, max_tokens=rng.randint(1, 30))
            (sequence,) = scheduler.add(request)
            live[sequence.sequence_id] = sequence
        ended = []
        if live and rng.random() < 0.05:
            ended.append(scheduler.finish(rng.choice(list(live)), FinishReason.STOP))
        plan = scheduler.schedule()
        if plan is not None:
            in_flight.append(plan)
        if in_flight and (plan is None or len(in_flight) == depth):
            plan = in_flight.popleft()
            tokens = [rng.choice((0, *range(1, 30))) for _ in range(len(plan.sampled))]
            for sequence, token_id, reason in scheduler.commit(plan, tokens):
                assert token_id != NO_TOKEN
                got[sequence.sequence_id].append(token_id)
                ended += [sequence] if reason else []
        for sequence in filter(None, ended):
            prompt = sequence.request.prompt_token_ids.tolist()
            assert sequence.token_ids == prompt + got[sequence.sequence_id]
            hashes = hash_blocks(np.array(sequence.token_ids, np.int32), block_size)
            assert sequence.block_hashes == hashes[: len(sequence.block_hashes)]
            num_preemptions += sequence.request.record.num_preemptions
            num_ended += 1
            del live[sequence.sequence_id]
    assert num_ended > 50
    assert (num_preemptions > 0) == (num_blocks < 64)
