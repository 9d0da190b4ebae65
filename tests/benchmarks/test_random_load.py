"""How the random load judges answers: what is equal, what is malformed, what it would notice."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.random_load.client import Answer, ChoiceResult
from benchmarks.random_load.judge import Reference, largest_difference, malformed, without_prefixes
from benchmarks.random_load.mix import Limits, RandomMix, RandomRequest, make_prompts

LIMITS = Limits(vocab_size=257, max_prompt=100, max_output=6)


def test_what_is_expected_of_a_reference() -> None:
    reference = Reference([5, 6, 7, 6, 8], [-1.0, -2.0, -3.0, -4.0, -5.0])
    assert reference.expected({"max_tokens": 3}) == [5, 6, 7]
    assert reference.expected({"max_tokens": 5, "stop_token_ids": [6, 99]}) == [5, 6]
    assert reference.expected({"max_tokens": 1, "stop_token_ids": [6]}) == [5]
    assert largest_difference(reference, ChoiceResult([5, 6], [-1.25, -2.0])) == 0.25
    assert largest_difference(reference, ChoiceResult([5, 6], [])) == 0


GOOD: dict[str, Any] = {"token_ids": [5, 6, 7], "logprobs": [-1.0, -1.0, -1.0], "finish_reason": "length"}


def problem(body: dict[str, Any], usage: tuple[int, int] = (2, 3), **changes: Any) -> str | None:
    choice = ChoiceResult(**{**GOOD, **changes})
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    request = RandomRequest({"prompt": [1, 2], "max_tokens": 3, "logprobs": 0, **body})
    return malformed(request, Answer(200, None, {0: choice}, counts))


def test_a_good_answer_has_no_problem() -> None:
    assert problem({}) is None
    assert problem({"max_tokens": 9, "stop_token_ids": [7]}, finish_reason="stop") is None


@pytest.mark.parametrize(
    ("body", "changes", "text"),
    [
        ({"max_tokens": 4}, {}, "3 tokens, not 4"),
        ({}, {"finish_reason": None}, "finish_reason None"),
        ({"stop_token_ids": [6]}, {}, "behind a stop id"),
        ({"stop_token_ids": [7]}, {}, "finish_reason length, not stop"),
        ({"n": 2}, {}, "choices"),
        ({}, {"logprobs": [-1.0]}, "1 log-probabilities of 3"),
        ({}, {"usage": (2, 4)}, "usage"),
        ({}, {"token_ids": []}, "no token"),
    ],
)
def test_malformed_answers(body: dict[str, Any], changes: dict[str, Any], text: str) -> None:
    assert text in (problem(body, **changes) or "")


def test_a_refusal_is_wrong_only_where_none_is_expected() -> None:
    assert malformed(RandomRequest({"prompt": [1]}, expected_status=400), Answer(400, "no")) is None
    assert "status 500" in (malformed(RandomRequest({"prompt": [1]}), Answer(500, "oh")) or "")


@given(st.lists(st.lists(st.integers(0, 2), max_size=4)))
def test_sequences_that_begin_no_other_one(sequences: list[list[int]]) -> None:
    kept = without_prefixes(sequences)
    every = {tuple(sequence) for sequence in sequences}
    begins = {a for a in every for b in every if a != b and b[: len(a)] == a}
    assert sorted(kept) == sorted(every - begins)


def test_the_mix_is_seeded_and_has_every_kind() -> None:
    def draw() -> list[RandomRequest]:
        rng = random.Random(3)
        prompts = make_prompts(rng, 10, LIMITS)
        mix = RandomMix(rng, prompts, [[11, 12]] * 10, LIMITS)
        return [mix.draw() for _ in range(500)]

    requests = draw()
    assert requests == draw()
    bodies = [request.body for request in requests]
    assert all(1 <= len(body["prompt"]) <= LIMITS.max_prompt for body in bodies)
    for name in ("n", "logprobs", "stop_token_ids", "top_p", "presence_penalty", "seed"):
        assert any(name in body for body in bodies) and not all(name in body for body in bodies)
    assert {request.expected_status for request in requests} == {200, 400}
    assert {request.known is None for request in requests} == {True, False}
    assert {request.leave_after_s is None for request in requests} == {True, False}
