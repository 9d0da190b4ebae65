"""Compiled grammars and their state, over llguidance. The engine knows both as `engine.constraint`."""

from __future__ import annotations

import os
from functools import cache

import llguidance
import numpy as np

MAX_THREADS = 8
"""For the masks of a step, each of which takes 0.02 to 1 ms."""


class GrammarMatcher:
    """Where one output stands in its grammar (`engine.constraint.Matcher`)."""

    __slots__ = ("_matcher", "num_tokens")

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher
        self.num_tokens = 0

    def advance(self, token_ids: list[int]) -> None:
        self.num_tokens += len(token_ids)
        self._matcher.consume_tokens(token_ids)

    @classmethod
    def fill(cls, matchers: list[GrammarMatcher], masks: np.ndarray) -> list[bool]:
        """Side by side on several cores. The GIL is given up once for all of them, not once for each.

        False for outputs that cannot go on: following the grammar to here took too much work.
        """
        going = [(m._matcher, i) for i, m in enumerate(matchers) if not m._matcher.is_error()]
        num_rows, num_words = masks.shape
        if going:  # else it raises
            _executor().unsafe_compute_mask_ptr(going, masks.ctypes.data, num_words * 4, num_rows)
        return [not m._matcher.is_error() for m in matchers]


@cache
def _executor() -> llguidance.LLExecutor:
    return llguidance.LLExecutor(min(os.cpu_count() or 1, MAX_THREADS))


class Grammar:
    """A compiled grammar (`engine.constraint.Constraint`)."""

    __slots__ = ("_start",)

    def __init__(self, start: llguidance.LLMatcher) -> None:
        """`start` has consumed nothing, and nothing but copies of it will."""
        self._start = start

    def new_matcher(self) -> GrammarMatcher:
        return GrammarMatcher(self._start.deep_copy())
