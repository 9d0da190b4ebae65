"""What is sent: seeded prompts of which many begin alike, and a random mix of every kind of request."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

FIRST_ID = 10  # below it special tokens may stand


@dataclass(frozen=True, slots=True)
class Limits:
    vocab_size: int
    max_prompt: int  # tokens
    max_output: int
    min_prompt: int = 1
    mean_leave_s: float = 1.0  # until a client that leaves has left
    priorities: bool = True  # whether the server takes them


@dataclass(frozen=True, slots=True)
class RandomRequest:
    body: dict[str, Any]
    known: int | None = None  # the number of its prompt among the known ones, for a greedy request
    leave_after_s: float | None = None
    expected_status: int = 200


def make_prompts(rng: random.Random, count: int, limits: Limits) -> list[list[int]]:
    """Lengths from 1 on, short ones more often; half of them go on from some part of an earlier one."""
    prompts: list[list[int]] = []
    for _ in range(count):
        length = skewed(rng, limits)
        start: list[int] = []
        if prompts and rng.random() < 0.5:
            earlier = rng.choice(prompts)
            start = earlier[: rng.randint(1, len(earlier))]
        prompts.append(start[:length] + new_tokens(rng, limits, length - len(start[:length])))
    return prompts


def skewed(rng: random.Random, limits: Limits) -> int:
    """A prompt's length, its logarithm uniform."""
    return round(math.exp(rng.uniform(math.log(limits.min_prompt), math.log(limits.max_prompt))))


def new_tokens(rng: random.Random, limits: Limits, count: int) -> list[int]:
    return [rng.randrange(FIRST_ID, limits.vocab_size) for _ in range(count)]


class RandomMix:
    """Draws requests. `references` are the answers of the known prompts, each asked alone."""

    def __init__(
        self, rng: random.Random, prompts: list[list[int]], references: list[list[int]], limits: Limits
    ) -> None:
        self._rng, self._prompts, self._references, self._limits = rng, prompts, references, limits

    def draw(self) -> RandomRequest:
        rng = self._rng
        if rng.random() < 0.01:
            return self._bad_request()
        known = rng.randrange(len(self._prompts))
        greedy = rng.random() < 0.6
        body: dict[str, Any] = {
            "max_tokens": rng.randint(1, self._limits.max_output),
            "ignore_eos": True,
            "priority": rng.randint(-2, 2) if self._limits.priorities else 0,
            "stream": rng.random() < 0.5,
        }
        if rng.random() < 0.2:
            body["n"] = rng.randint(2, 4)
        if rng.random() < 0.25:
            body["logprobs"] = rng.randint(0, 3)
        if rng.random() < 0.2:
            body["stop_token_ids"] = [rng.choice(self._references[known]), rng.randrange(FIRST_ID)]
        body |= {"prompt": self._prompts[known], "temperature": 0} if greedy else self._sampled(known)
        leaves = rng.random() < 0.15
        leave_after_s = rng.expovariate(1 / self._limits.mean_leave_s) + 1e-3 if leaves else None
        return RandomRequest(body, known if greedy else None, leave_after_s)

    def _sampled(self, known: int) -> dict[str, Any]:
        """Of a prompt that nobody else has, or of a known one; with every way to restrict the choice."""
        rng = self._rng
        fields: dict[str, Any] = {
            "prompt": self._prompts[known],
            "temperature": rng.uniform(0.3, 1.5),
            "seed": rng.randrange(1 << 30),
        }
        if rng.random() < 0.5:
            fields["prompt"] = new_tokens(rng, self._limits, skewed(rng, self._limits))
        restrictions = {
            "top_p": rng.uniform(0.5, 1.0),
            "top_k": rng.randint(1, 100),
            "min_p": rng.uniform(0.0, 0.2),
            "presence_penalty": rng.uniform(-1.0, 1.0),
            "repetition_penalty": rng.uniform(1.0, 1.3),
        }
        return fields | {name: value for name, value in restrictions.items() if rng.random() < 0.3}

    def _bad_request(self) -> RandomRequest:
        """One that has to be refused, and must leave nothing behind."""
        prompt = new_tokens(self._rng, self._limits, 5)
        wrong = self._rng.choice(
            [{"max_tokens": -1}, {"temperature": -2}, {"prompt": [1 << 30]}, {"top_p": 7}]
        )
        return RandomRequest({"prompt": prompt, "max_tokens": 3, **wrong}, expected_status=400)
