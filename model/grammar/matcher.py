"""Compiled grammars and their state, over llguidance. The engine knows both as `engine.constraint`."""

from __future__ import annotations

import llguidance
import numpy as np


class GrammarMatcher:
    """Where one output stands in its grammar (`engine.constraint.Matcher`)."""

    __slots__ = ("_matcher", "num_tokens")

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher
        self.num_tokens = 0

    def advance(self, token_ids: list[int]) -> None:
        self.num_tokens += len(token_ids)
        self._matcher.consume_tokens(token_ids)

    def fill(self, mask: np.ndarray) -> bool:
        """Leaves the GIL to others meanwhile."""
        if self._matcher.is_error():
            return False
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        return not self._matcher.is_error()


class Grammar:
    """A compiled grammar (`engine.constraint.Constraint`)."""

    __slots__ = ("_start",)

    def __init__(self, start: llguidance.LLMatcher) -> None:
        """`start` has consumed nothing, and nothing but copies of it will."""
        self._start = start

    def new_matcher(self) -> GrammarMatcher:
        return GrammarMatcher(self._start.deep_copy())
