"""Reported cases of the prefix cache: it changes what is computed, never what is answered."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.api import at_once, complete, token_ids
from tests.support.process import ServerProcess

BLOCK_SIZE = 16


def random_ids(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 259) for _ in range(length)]


def cached_tokens(whole: dict[str, Any]) -> int:
    count: int = whole["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def test_p1_answers_are_equal_with_and_without_the_cache(
    roomy: ServerProcess, guarded: ServerProcess
) -> None:
    rng = random.Random(1)
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
    prompts = ["".join(rng.choices(alphabet, k=512)) for _ in range(8)]
    runs = [
        complete(server, prompts, max_tokens=6, logprobs=1, ignore_eos=True)
        for server in (roomy, roomy, guarded, guarded)
    ]
    assert [cached_tokens(run) > 0 for run in runs] == [False, True, False, False]
    for choices in zip(*(run["choices"] for run in runs), strict=True):
        assert all(choice["token_ids"] == choices[0]["token_ids"] for choice in choices)
        for choice in choices[1:]:
            expected = pytest.approx(choices[0]["logprobs"]["token_logprobs"], abs=1e-3)
            assert choice["logprobs"]["token_logprobs"] == expected


@pytest.mark.parametrize("num_blocks", [1, 2])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_p2_a_prompt_that_is_cached_to_its_end(roomy: ServerProcess, num_blocks: int, extra: int) -> None:
    length = num_blocks * BLOCK_SIZE + extra
    prompt = random_ids(length, seed=100 * num_blocks + extra)
    first, second = (complete(roomy, prompt, max_tokens=5, ignore_eos=True) for _ in range(2))
    assert first["choices"][0]["token_ids"] == second["choices"][0]["token_ids"]
    assert cached_tokens(first) == 0
    assert cached_tokens(second) == (length - 1) // BLOCK_SIZE * BLOCK_SIZE


def test_p4_equal_prompts_in_one_batch(roomy: ServerProcess, guarded: ServerProcess) -> None:
    expected = token_ids(guarded, random_ids(600, seed=5), max_tokens=6)
    listed = complete(roomy, [random_ids(600, seed=5)] * 3, max_tokens=6)
    assert [choice["token_ids"] for choice in listed["choices"]] == [expected] * 3
    expected = token_ids(guarded, random_ids(600, seed=6), max_tokens=6)
    copies = at_once([lambda: token_ids(roomy, random_ids(600, seed=6), max_tokens=6)] * 16)
    assert copies == [expected] * 16
