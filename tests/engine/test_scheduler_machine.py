"""Every event in any order: no block is lost or read too early, no token differs, nobody waits for ever."""

from __future__ import annotations

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from engine.config import SchedulingPolicy
from tests.support.examples import examples
from tests.support.simulated_engine import VOCAB_SIZE, SimulatedEngine

MAX_MODEL_LEN = 40
FAMILIES = [[(7 * i * i + family) % VOCAB_SIZE for i in range(MAX_MODEL_LEN)] for family in (3, 5)]
"""Prompts are beginnings of these, some with a tail of their own."""

limits = st.one_of(st.none(), st.integers(0, 12))


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        policy=st.sampled_from(("fcfs", "prefill-first", "priority")),
        depth=st.sampled_from((1, 2)),
        block_size=st.sampled_from((1, 4, 5)),
        max_num_seqs=st.integers(1, 5),
        spare_tokens=st.integers(0, 12),
        spare_blocks=st.integers(0, 10),
        caching=st.booleans(),
    )
    def start(
        self,
        policy: SchedulingPolicy,
        depth: int,
        block_size: int,
        max_num_seqs: int,
        spare_tokens: int,
        spare_blocks: int,
        caching: bool,
    ) -> None:
        self.engine = SimulatedEngine(
            depth,
            policy=policy,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + spare_tokens,
            max_model_len=MAX_MODEL_LEN,
            block_size=block_size,
            num_blocks=-(-MAX_MODEL_LEN // block_size) + spare_blocks,
            enable_prefix_caching=caching,
        )

    @rule(
        family=st.sampled_from((0, 1)),
        length=st.integers(1, MAX_MODEL_LEN),
        tail=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=3),
        n=st.integers(1, 3),
        priority=st.integers(0, 2),
        cache_salt=st.sampled_from((b"", b"", b"tenant")),
        max_tokens=limits,
        min_tokens=st.integers(0, 6),
        stop_token_ids=st.sampled_from(((), (1, 2))),
        ignore_eos=st.booleans(),
        prompt_logprobs=st.sampled_from((None, None, 0)),
    )
    def submit(
        self,
        family: int,
        length: int,
        tail: list[int],
        max_tokens: int | None,
        min_tokens: int,
        **rest: object,
    ) -> None:
        longest = MAX_MODEL_LEN - (max_tokens != 0)  # a prompt without room for a wanted token is refused
        prompt = (FAMILIES[family][:length] + tail)[:longest]
        min_tokens = min_tokens if max_tokens is None else min(min_tokens, max_tokens)
        self.engine.submit(prompt, max_tokens=max_tokens, min_tokens=min_tokens, **rest)  # type: ignore[arg-type]

    @rule(num_steps=st.integers(1, 8))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.engine.step()

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        outcomes = list(self.engine.outcomes.values())
        known = [outcome.request.request_id for outcome in outcomes[-8:]]
        self.engine.abort(data.draw(st.sampled_from([*known, "unknown"])))

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """A stop string was found, perhaps in a sequence that has ended since."""
        known = list(self.engine.outcomes)[-8:]
        self.engine.finish(data.draw(st.sampled_from([*known, -1])))

    @rule()
    def forget(self) -> None:
        self.engine.scheduler.block_manager.forget_prefixes()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.run()
            self.engine.check_drained()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = examples(40, stateful_step_count=30)


MAX_LIVE = 16
LONGEST_WAIT = (MAX_LIVE + 2) * 2 * MAX_MODEL_LEN
"""Steps: the first in line advances in each, and at worst it computes its tokens twice, one at a time."""


def submit_at_random(engine: SimulatedEngine, rng: random.Random) -> str:
    tail = [rng.randrange(VOCAB_SIZE)] * rng.randint(0, 2)
    request = engine.submit(
        rng.choice(FAMILIES)[: rng.randint(1, 30)] + tail,
        n=rng.choice((1, 1, 1, 3)),
        priority=rng.choice((0, 0, 0, 1)),
        max_tokens=rng.choice((None, 0, 1, 8, 20)),
        ignore_eos=rng.random() < 0.3,
        cache_salt=rng.choice((b"", b"", b"tenant")),
    )
    return request.request_id


@pytest.mark.parametrize(
    ("policy", "depth", "num_steps"),
    [
        ("fcfs", 2, 10_000),
        ("fcfs", 1, 1_000),
        ("prefill-first", 1, 1_000),
        ("prefill-first", 2, 1_000),
        ("priority", 1, 1_000),
        ("priority", 2, 1_000),
    ],
)
def test_random_steps_in_a_tiny_pool(policy: SchedulingPolicy, depth: int, num_steps: int) -> None:
    rng = random.Random(0)
    engine = SimulatedEngine(
        depth,
        policy=policy,
        max_num_seqs=6,
        max_num_batched_tokens=16,
        max_model_len=MAX_MODEL_LEN,
        block_size=4,
        num_blocks=18,
    )
    submitted_at: dict[str, int] = {}
    longest_wait = 0
    for step in range(num_steps):
        if len(engine.live) < MAX_LIVE and rng.random() < 0.4:
            submitted_at[submit_at_random(engine, rng)] = step
        if rng.random() < 0.03:
            engine.abort(f"request-{rng.randrange(len(engine.outcomes) + 1)}")
        if engine.live and rng.random() < 0.03:
            engine.finish(rng.choice(list(engine.live)))
        engine.step()
        live = {sequence.request.request_id for sequence in engine.live.values()}
        for request_id in submitted_at.keys() - live:
            longest_wait = max(longest_wait, step - submitted_at.pop(request_id))
    engine.run()
    engine.check_drained()
    assert policy == "priority" or longest_wait <= LONGEST_WAIT
    records = {outcome.request.request_id: outcome.request.record for outcome in engine.outcomes.values()}
    assert sum(record.num_preemptions for record in records.values()) > num_steps / 100
    assert sum(record.num_cached_tokens for record in records.values()) > num_steps / 10
