"""Prompts that no prefix cache has seen: each begins with tokens or words of its own."""

from __future__ import annotations

import random
from typing import Any

TOKEN_IDS = range(1000, 30000)  # of the embedded model: plain pieces of text, no special tokens
SENTENCE = (
    "the river ran past an old mill where three friends met each morning to talk about bread and the weather "
    "while boats went slowly by under a grey sky and a small dog slept beside the door of the baker who sang"
)
WORDS = SENTENCE.split()


class Prompts:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token_ids(self, count: int, length: int) -> list[list[int]]:
        return [self._random.choices(TOKEN_IDS, k=length) for _ in range(count)]

    def texts(self, count: int, num_words: int) -> list[str]:
        return [" ".join(self._random.choices(WORDS, k=num_words)) for _ in range(count)]


def completion(model: str, prompt: str | list[int], max_tokens: int, **fields: Any) -> dict[str, Any]:
    """The body of a completions request, greedy unless `fields` say otherwise."""
    return {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **fields}


def exact_completion(model: str, token_ids: list[int], max_tokens: int, **fields: Any) -> dict[str, Any]:
    """One that runs to `max_tokens` and tells which tokens each chunk holds (Octavo's own fields)."""
    exact = {"ignore_eos": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
    return completion(model, token_ids, max_tokens, **exact, **fields)
