"""The budget finds the chunk that keeps steps to the target, on devices of any speed."""

import pytest

from engine.chunk_budget import ChunkBudget


@pytest.mark.parametrize("tokens_per_s", [300.0, 45_000.0, 1_000_000.0])
@pytest.mark.parametrize("decode_s", [0.001, 0.008])
def test_steps_settle_near_the_target(tokens_per_s: float, decode_s: float) -> None:
    budget = ChunkBudget(target_s=0.030)
    seconds = 0.0
    for step in range(200):
        tokens = budget.tokens(0, num_waiting=0, next_prompt=0) if step % 3 == 0 else 0
        seconds = decode_s + tokens / tokens_per_s
        budget.observe(10, tokens, seconds)
    tokens = budget.tokens(0, 0, 0)
    assert tokens >= 64
    if tokens > 64:  # else the device is too slow for the least chunk
        assert 0.8 * 0.030 <= decode_s + tokens / tokens_per_s <= 1.1 * 0.030


def test_a_backlog_stretches_the_target() -> None:
    budget = ChunkBudget(target_s=0.030)
    waiting = {n: budget.tokens(0, n, 0) for n in (0, 4, 8, 10, 40)}
    assert waiting[0] == waiting[4] < waiting[8] < waiting[40]
    assert waiting[10] == pytest.approx(2 * waiting[0], abs=128)


def test_decodes_and_chunk_fill_whole_tiles() -> None:
    budget = ChunkBudget(target_s=0.030)
    for num_decodes in (1, 43, 100):
        assert (num_decodes + budget.tokens(num_decodes, 0, next_prompt=10_000)) % 128 == 0


@pytest.mark.parametrize("num_decodes", [1, 20, 43, 100])
def test_a_prompt_is_finished_rather_than_left_with_a_few_tokens(num_decodes: int) -> None:
    budget = ChunkBudget(target_s=0.030)
    share = budget.tokens(num_decodes, 0, next_prompt=0)
    for left in range(10, share + 2000):
        tokens = budget.tokens(num_decodes, 0, next_prompt=left)
        assert tokens >= left or left - tokens > share // 16
        assert share <= tokens <= 1.5 * share  # others share the step with a short one


def test_it_expects_what_it_has_seen() -> None:
    budget = ChunkBudget(target_s=0.030)
    for _ in range(100):
        budget.observe(10, 0, 0.005)
        budget.observe(10, 500, 0.015)
    assert budget.expected_s(10, 0) == pytest.approx(0.005, rel=0.05)
    assert budget.expected_s(10, 1000) == pytest.approx(0.025, rel=0.05)
    assert budget.expected_s(0, 1000) == pytest.approx(0.020, rel=0.05)


def test_chunks_grow_again_when_the_decodes_become_fewer() -> None:
    """Though no step without a chunk tells what these decodes take."""
    budget = ChunkBudget(target_s=0.030)
    for _ in range(100):
        budget.observe(512, 0, 0.033)
    for step in range(100):
        num_decodes = max(40, 512 - 8 * step)
        tokens = budget.tokens(num_decodes, num_waiting=4, next_prompt=10_000)
        budget.observe(num_decodes, tokens, num_decodes * 0.033 / 512 + 0.004 + tokens / 48_000)
    assert tokens > 600


def test_decodes_slower_than_the_target_still_leave_prompts_a_little() -> None:
    budget = ChunkBudget(target_s=0.030)
    for _ in range(100):
        budget.observe(200, 0, 0.2)
    assert 64 <= budget.tokens(200, 0, next_prompt=10_000) <= 0.1 * 20_000
    for _ in range(100):
        budget.observe(10, 400, 0.2 + 400 / 300)  # prompts are slow as well
    assert budget.tokens(10, 0, next_prompt=10_000) == 64


def test_the_last_of_a_burst_do_not_creep() -> None:
    """Decodes that became many while each step had prompts take long, and that is not the prompts' fault."""

    def device_s(num_decodes: int, num_prompt_tokens: int) -> float:
        return 0.004 + 6e-5 * num_decodes + 2.4e-5 * num_prompt_tokens

    budget = ChunkBudget(target_s=0.010)
    for _ in range(100):
        budget.observe(4, 0, device_s(4, 0))
    left, steps_of_the_last = 512 * 1024, 0
    while left > 0:
        num_waiting, of_the_next = divmod(left, 1024)
        num_decodes = 511 - num_waiting
        num_tokens = min(budget.tokens(num_decodes, num_waiting, of_the_next or 1024), left, 8192)
        budget.observe(num_decodes, num_tokens, device_s(num_decodes, num_tokens))
        left -= num_tokens
        steps_of_the_last += num_waiting < 4
    assert steps_of_the_last < 45


@pytest.mark.parametrize("num_waiting", [0, 10, 40])
@pytest.mark.parametrize("next_prompt", [100, 600, 10_000])
def test_decodes_and_chunk_come_to_a_size_that_rows_are_padded_to(num_waiting: int, next_prompt: int) -> None:
    sizes = (256, 512, 768, 1024, 1536, 2304)
    budget = ChunkBudget(target_s=0.030, row_sizes=sizes)
    for num_decodes in (1, 43, 100, 230):
        num_rows = num_decodes + budget.tokens(num_decodes, num_waiting, next_prompt)
        assert num_rows in sizes or num_rows > sizes[-1]
