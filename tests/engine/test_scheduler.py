"""The scheduler's promises, one by one, on a simulated KV store (see tests.support.simulated_engine)."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from engine.config import ConfigError
from engine.handle import PromptTooLongError
from engine.record import RequestRecord
from engine.request import FinishReason, Request
from engine.sampling_params import SamplingParams
from tests.support.simulated_engine import VOCAB_SIZE, SimulatedEngine

BLOCK_SIZE = 4
POLICIES = ("fcfs", "prefill-first", "priority")


def engine(depth: int = 2, **overrides: object) -> SimulatedEngine:
    config = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 64,
        "block_size": BLOCK_SIZE,
        "num_blocks": 64,
    }
    return SimulatedEngine(depth, **{**config, **overrides})


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, length).tolist()


def test_counters_of_a_prompt_and_its_first_decode() -> None:
    one = engine()
    request = one.submit([3, 4, 5], max_tokens=4, ignore_eos=True)
    (sequence,) = one.live.values()
    plan = one.scheduler.schedule()
    assert plan is not None
    [(planned, row, start, num_tokens, samples)] = plan.chunks
    assert (planned, row, start, num_tokens, samples) == (sequence, sequence.row, 0, 3, True)
    assert (sequence.num_tokens, sequence.num_cached_tokens, sequence.num_scheduled_tokens) == (4, 3, 3)
    ahead = one.scheduler.schedule()
    assert ahead is not None and list(ahead.decodes) == [(sequence, row, 3, 1, True)]
    assert sequence.token_ids == [3, 4, 5] and sequence.num_pending_tokens == 2
    assert list(one.scheduler.commit(plan, [7])) == [(sequence, 7, None)]
    assert sequence.token_ids == [3, 4, 5, 7] and sequence.num_pending_tokens == 1
    assert (sequence.num_tokens, sequence.num_cached_tokens, sequence.num_scheduled_tokens) == (5, 4, 1)
    assert request.record.first_scheduled_ns == one.now_ns


def test_a_prompt_does_not_stall_decodes() -> None:
    """Case Q1: a long prompt goes in chunks beside the decodes, which get a token in every step."""
    one = engine(max_num_batched_tokens=8)
    first = one.submit(prompt(3), max_tokens=30, ignore_eos=True)
    one.step()
    one.submit(prompt(50, seed=1), max_tokens=1)
    chunk_sizes = []
    while len(one.live) > 1:
        plan = one.step()
        assert plan is not None and len(plan.decodes) == 1
        chunk_sizes += [chunk.num_tokens for chunk in plan.chunks]
    assert chunk_sizes == [7] * 7 + [1]
    one.run()
    one.check_drained()
    assert len(one.tokens(first)[0]) == 30


def test_prefill_first_keeps_prompts_and_decodes_apart() -> None:
    one = engine(policy="prefill-first", max_num_batched_tokens=8)
    one.submit(prompt(3), max_tokens=10, ignore_eos=True)
    plans = [one.step(), one.step()]
    one.submit(prompt(20, seed=1), max_tokens=10, ignore_eos=True)
    plans += [one.step() for _ in range(4)]
    assert [(len(plan.decodes), len(plan.chunks)) for plan in plans if plan] == [
        *((0, 1), (1, 0)),
        *((0, 1), (0, 1), (0, 1), (2, 0)),
    ]


def test_priority_decides_who_is_admitted_and_who_is_preempted() -> None:
    one = engine(policy="priority", max_num_seqs=2, num_blocks=16)
    later = one.submit(prompt(20, seed=1), priority=2, max_tokens=40, ignore_eos=True)
    one.step()
    low = one.submit(prompt(20, seed=2), priority=1, max_tokens=40, ignore_eos=True)
    high = one.submit(prompt(20, seed=3), priority=0, max_tokens=40, ignore_eos=True)
    one.step()
    running = {s.request.request_id for s in one.live.values() if s.row >= 0}
    assert running == {later.request_id, high.request_id}
    one.run()
    one.check_drained()
    assert later.record.num_preemptions > 0
    assert high.record.num_preemptions == 0
    assert high.record.first_scheduled_ns < low.record.first_scheduled_ns


@pytest.mark.parametrize("num_blocks_of_prompt", [1, 2])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_the_last_prompt_token_is_always_computed(num_blocks_of_prompt: int, extra: int) -> None:
    """Case P2: a prompt that is cached to its end, sent again."""
    one = engine()
    tokens = prompt(num_blocks_of_prompt * BLOCK_SIZE + extra)
    requests = []
    for _ in range(2):
        requests.append(one.submit(tokens, max_tokens=5, ignore_eos=True))
        one.run()
    one.check_drained()
    assert one.tokens(requests[0]) == one.tokens(requests[1])
    cached = [request.record.num_cached_tokens for request in requests]
    assert cached == [0, (len(tokens) - 1) // BLOCK_SIZE * BLOCK_SIZE]


@pytest.mark.parametrize("depth", [1, 2])
def test_equal_prompts_in_one_step_share_nothing_unwritten(depth: int) -> None:
    """Case P4. The device refuses a read of what was not written in an earlier step."""
    one = engine(depth, max_num_batched_tokens=256)
    requests = [one.submit(prompt(20), max_tokens=9, ignore_eos=True) for _ in range(5)]
    plan = one.step()
    assert plan is not None and [chunk.num_tokens for chunk in plan.chunks] == [20] * 5
    one.run()
    one.check_drained()
    assert len({tuple(one.tokens(request)[0]) for request in requests}) == 1
    assert [request.record.num_cached_tokens for request in requests] == [0] * 5


def test_a_follow_up_turn_finds_the_generated_tokens() -> None:
    one = engine()
    request = one.submit(prompt(6), max_tokens=13, ignore_eos=True)
    one.run()
    history = prompt(6) + one.tokens(request)[0]
    follow_up = one.submit([*history, 1, 2, 3], max_tokens=2)
    one.run()
    one.check_drained()
    assert follow_up.record.num_cached_tokens == 16  # of 19; the last generated token was never fed


def test_salts_do_not_share_blocks() -> None:
    one = engine()
    salted = []
    for salt in (b"", b"a", b"b", b"a"):
        salted.append(one.submit(prompt(20), cache_salt=salt, max_tokens=3))
        one.run()
    one.check_drained()
    assert [request.record.num_cached_tokens for request in salted] == [0, 0, 0, 16]


def test_salts_do_not_share_generated_blocks() -> None:
    """The first full block of a short prompt is hashed when it has been generated, and under its salt too."""
    one = engine()
    mine = one.submit(prompt(2), cache_salt=b"mine", max_tokens=12, ignore_eos=True)
    one.run()
    history = prompt(2) + one.tokens(mine)[0]
    cached = {}
    for salt in (b"", b"theirs", b"mine"):
        request = one.submit(history, cache_salt=salt, max_tokens=1)
        one.run()
        cached[salt] = request.record.num_cached_tokens
    one.check_drained()
    assert cached == {b"": 0, b"theirs": 0, b"mine": 12}


def test_siblings_run_beside_their_leader_and_hold_up_nobody() -> None:
    one = engine(max_num_batched_tokens=8)
    request = one.submit(prompt(14), n=3, max_tokens=9, ignore_eos=True)
    behind = one.submit(prompt(5, seed=1), max_tokens=1)
    plans = [one.step()]
    assert (one.scheduler.num_waiting, one.scheduler.num_deferred) == (3, 2)
    plans += [one.step() for _ in range(3)]
    assert one.scheduler.num_deferred == 0
    shares = [[(e.sequence.request, e.sequence.index, e.num_tokens) for e in p.chunks] for p in plans if p]
    assert shares == [
        [(request, 0, 8)],
        [(request, 0, 6), (behind, 0, 2)],
        [(behind, 0, 3)],  # the step before is not committed yet, so the prompt's blocks are not there
        [(request, 1, 2), (request, 2, 2)],
    ]
    one.run()
    one.check_drained()


@pytest.mark.parametrize("caching", [True, False])
def test_siblings_share_the_prompt(caching: bool) -> None:
    """They wait until the first one's blocks are there; others behind them need not wait."""
    one = engine(enable_prefix_caching=caching, max_num_batched_tokens=16)
    before = one.submit(prompt(30), max_tokens=1)
    one.run()
    request = one.submit(prompt(30), n=4, max_tokens=6, ignore_eos=True)
    behind = one.submit(prompt(3, seed=1), max_tokens=1)
    computed_before = one.device.num_computed_tokens
    one.run()
    one.check_drained()
    first = 30 - request.record.num_cached_tokens
    assert request.record.num_cached_tokens == (28 if caching else 0)
    assert one.device.num_computed_tokens - computed_before <= first + 3 * 2 + 4 * 6 + 3
    assert len({tuple(tokens) for tokens in one.tokens(request)}) == 4
    assert before.record.num_cached_tokens == behind.record.num_cached_tokens == 0


@pytest.mark.parametrize("how", ["finish", "abort"])
def test_siblings_outlive_their_leader(how: str) -> None:
    one = engine(max_num_batched_tokens=8)
    request = one.submit(prompt(20), n=3, max_tokens=3, ignore_eos=True)
    one.step()
    if how == "finish":
        one.finish(request.sequence_ids[0])
    else:
        one.abort(request.request_id)
    one.run()
    one.check_drained()
    assert [len(tokens) for tokens in one.tokens(request)] == ([0, 3, 3] if how == "finish" else [0, 0, 0])


def test_without_prefix_caching_requests_share_nothing() -> None:
    one = engine(enable_prefix_caching=False)
    for _ in range(2):
        request = one.submit(prompt(20), max_tokens=3)
        one.run()
        assert request.record.num_cached_tokens == 0


def test_prompt_logprobs_need_every_row() -> None:
    one = engine()
    one.submit(prompt(20), max_tokens=2)
    one.run()
    request = one.submit(prompt(20), max_tokens=2, prompt_logprobs=0, n=2)
    computed_before = one.device.num_computed_tokens
    one.run()
    one.check_drained()
    assert request.record.num_cached_tokens == 0
    assert one.device.num_computed_tokens - computed_before <= 20 + 4 + 2 * 2


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_preempted_sequences_go_on_where_they_were(policy: str, depth: int) -> None:
    """Case R1: room for about three of eight."""
    one = engine(depth, policy=policy, num_blocks=24)
    requests = [one.submit(prompt(9, seed=i), max_tokens=40, ignore_eos=True) for i in range(8)]
    one.run()
    one.check_drained()  # each output is what it would have been alone
    assert sum(request.record.num_preemptions for request in requests) > 0
    assert [request.record.num_cached_tokens for request in requests] == [0] * 8


def test_cached_blocks_make_room_for_the_head_of_the_queue() -> None:
    """Case Q3: a pool full of cached blocks, a head that needs nine tenths of it, a small one behind."""
    one = engine(num_blocks=20)
    for i in range(5):
        one.submit(prompt(15, seed=i), max_tokens=1)
        one.run()
    head = one.submit(prompt(60, seed=9), max_tokens=4, ignore_eos=True)
    small = one.submit(prompt(2, seed=10), max_tokens=4, ignore_eos=True)
    plan = one.step()
    assert plan is not None and plan.chunks[0].sequence.request is head
    one.run()
    one.check_drained()
    assert head.record.first_scheduled_ns <= small.record.first_scheduled_ns


def test_a_lone_prompt_of_the_whole_pool_runs() -> None:
    one = engine(num_blocks=16)
    request = one.submit(prompt(63), max_tokens=None)
    one.run()
    one.check_drained()
    assert len(one.tokens(request)[0]) == 1


def test_abort_at_any_moment() -> None:
    """Case A5: waiting, running, between schedule and commit, gone, unknown."""
    one = engine(max_num_seqs=1)
    running = one.submit(prompt(9), max_tokens=9)
    waiting = one.submit(prompt(9), max_tokens=9)
    plan = one.scheduler.schedule()
    assert plan is not None
    ahead = one.scheduler.schedule()
    assert ahead is not None
    for request in (running, waiting):
        one.abort(request.request_id)
    one.abort(running.request_id)
    assert one.scheduler.abort("unknown") == []
    assert one.scheduler.finish(-5, FinishReason.STOP) is None
    assert not one.scheduler.commit(plan, [5])
    assert not one.scheduler.commit(ahead, [5])
    one.scheduler.check()
    after = one.submit(prompt(9), max_tokens=9)
    one.run()
    one.check_drained()
    assert one.tokens(after)[0]


def test_no_admission_while_tokens_are_in_flight() -> None:
    """A preempted sequence first gets what launched steps sample for it, however much room there is."""
    one = engine(num_blocks=16)
    older = one.submit(prompt(31), ignore_eos=True)
    newer = one.submit(prompt(27, seed=1), ignore_eos=True)
    plans = [one.scheduler.schedule() for _ in range(3)]
    assert [len(plan.sampled) for plan in plans if plan] == [2, 2, 1]
    assert newer.record.num_preemptions == 1
    one.abort(older.request_id)
    assert one.scheduler.schedule() is None
    for plan, tokens in zip(plans, ([5, 6], [7, 8], [9]), strict=True):
        assert plan is not None
        published = [(s.request, token) for s, token, _ in one.scheduler.commit(plan, tokens)]
        assert published == [(newer, token) for token in tokens[1:]]
        one.scheduler.check()
    resumed = one.scheduler.schedule()
    assert resumed is not None and [chunk[2:] for chunk in resumed.chunks] == [(0, 29, True)]
    assert resumed.chunks[0].sequence.token_ids[27:] == [6, 8]


def test_rows_are_reused_and_never_exceeded() -> None:
    one = engine(max_num_seqs=2)
    for i in range(6):
        one.submit(prompt(4, seed=i), max_tokens=3, ignore_eos=True)
    rows = set()
    while one.live:
        plan = one.step()
        rows |= {entry.row for entry in plan.sampled} if plan else set()
        assert one.scheduler.num_running <= 2
    assert rows == {0, 1}


def test_what_cannot_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="--max-num-batched-tokens"):
        engine(max_num_batched_tokens=7)
    with pytest.raises(ConfigError, match="--max-model-len"):
        engine(num_blocks=15)
    one = engine()
    with pytest.raises(PromptTooLongError, match="65 tokens"):
        one.submit(prompt(65))
    request = Request("r", np.array(prompt(9), np.int32), SamplingParams(), [], RequestRecord("r"))
    with pytest.raises(ValueError, match="block_hashes"):
        one.scheduler.add(request)
    assert not one.scheduler.has_work


def test_it_needs_neither_torch_nor_http() -> None:
    """The simulator borrows the scheduler on machines that have neither."""
    code = (
        "import sys, engine.scheduler, engine.block_manager, engine.sequence, engine.plan\n"
        "banned = {'torch', 'fastapi', 'uvicorn', 'pydantic', 'server', 'model', 'kernels'}\n"
        "sys.exit(', '.join(banned & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
