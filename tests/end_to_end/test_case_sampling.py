"""Reported cases of sampling: what a request asks for holds for it, and for it alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import at_once, complete, token_ids
from tests.support.case_model import VOCAB_SIZE
from tests.support.process import ServerProcess

PLAIN: dict[str, Any] = {"max_tokens": 32, "ignore_eos": True}
Call = tuple[str, dict[str, Any]]


def together(server: ServerProcess, *calls: Call) -> list[list[int]]:
    """The tokens of requests that run side by side."""
    return at_once([lambda p=prompt, f=fields: token_ids(server, p, **f) for prompt, fields in calls])


@pytest.mark.parametrize("extreme", [{"temperature": 1e-4}, {"temperature": 1, "top_p": 1e-4}])
def test_b7_tiny_temperature_and_top_p_are_greedy_and_harm_nobody(
    roomy: ServerProcess, extreme: dict[str, Any]
) -> None:
    others: list[Call] = [(f"Neighbour {i}", PLAIN) for i in range(8)]
    alone = [together(roomy, call)[0] for call in [*others, ("Extreme", PLAIN)]]
    assert together(roomy, *others, ("Extreme", {**PLAIN, **extreme})) == alone


def test_m1_a_seeded_request_does_not_depend_on_its_neighbours(roomy: ServerProcess) -> None:
    seeded: Call = ("Seeded", {**PLAIN, "temperature": 0.8, "seed": 42})
    mates: list[list[Call]] = [
        [],
        [("Mate", {**PLAIN, "temperature": 1, "seed": 7})],
        [("Mate", {**PLAIN, "temperature": 1})],
        [("Mate", {**PLAIN, "temperature": 1}), ("Another mate", PLAIN)],
    ]
    runs = [together(roomy, *mate, seeded)[-1] for mate in mates for _ in range(2)]
    assert runs == [runs[0]] * len(runs)


def test_m3_penalties_stay_with_their_request(roomy: ServerProcess) -> None:
    penalized: Call = ("Same", {**PLAIN, "repetition_penalty": 1.5})
    plain: Call = ("Same", PLAIN)
    a, b = together(roomy, penalized)[0], together(roomy, plain)[0]
    assert a != b
    for _ in range(3):
        assert together(roomy, penalized, plain) == [a, b]
        assert together(roomy, plain, penalized) == [b, a]


def test_m5_bias_and_penalties_count_when_greedy(roomy: ServerProcess) -> None:
    best = token_ids(roomy, "Loop", **PLAIN)
    banned = {str(token_id): -100 for token_id in best}
    assert not set(token_ids(roomy, "Loop", logit_bias=banned, **PLAIN)) & set(best)
    loop = token_ids(roomy, "Loop", logit_bias={"70": 20}, **PLAIN)
    assert loop.count(70) > 8
    broken = token_ids(roomy, "Loop", logit_bias={"70": 20}, frequency_penalty=2, **PLAIN)
    assert broken.count(70) < loop.count(70)


def test_m7_repetition_penalty_with_the_highest_ids(roomy: ServerProcess) -> None:
    prompt = [VOCAB_SIZE - 1, VOCAB_SIZE - 2, VOCAB_SIZE - 1, 3, 3] * 4
    whole = complete(roomy, [[*prompt, i + 5] for i in range(16)], repetition_penalty=1.1, **PLAIN)
    assert [len(choice["token_ids"]) for choice in whole["choices"]] == [32] * 16
    (again,) = together(roomy, ("x", {**PLAIN, "repetition_penalty": 1.1}))
    assert len(again) == 32
