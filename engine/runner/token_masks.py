"""Which tokens the constrained sequences of a batch may get next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from engine.constraint import Matcher
from engine.plan import ScheduledSequence
from engine.sequence import SequenceStatus


@dataclass(slots=True)
class TokenMasks:
    """One mask for each of C constrained sequences."""

    bits: np.ndarray  # [C, ceil(vocab_size / 32)] int32, bit i of word w for token 32 * w + i
    stuck: list[int] = field(default_factory=list)  # ids of sequences that cannot go on; anything is allowed


class MaskSource(Protocol):
    def build(self, constrained: list[ScheduledSequence]) -> TokenMasks:
        """Tokens of all steps before this one have to be known on the host by now."""
        ...


class MaskBuilder:
    """Asks each sequence's matcher."""

    def __init__(self, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._num_words = -(-vocab_size // 32)
        self._eos_token_ids = eos_token_ids

    def build(self, constrained: list[ScheduledSequence]) -> TokenMasks:
        masks = np.full((len(constrained), self._num_words), -1, dtype=np.int32)
        # What is sampled for a sequence that one of those steps has ended is dropped.
        live = [i for i, e in enumerate(constrained) if e.sequence.status is not SequenceStatus.FINISHED]
        if not live:
            return TokenMasks(masks)
        matchers = [_advanced(constrained[i]) for i in live]
        filled = np.empty((len(live), self._num_words), dtype=np.int32)
        stuck = []
        for i, mask, goes_on in zip(live, filled, matchers[0].fill(matchers, filled), strict=True):
            if goes_on:
                self._postpone_end(mask, constrained[i])
                masks[i] = mask
            else:
                stuck.append(constrained[i].sequence.sequence_id)
        return TokenMasks(masks, stuck)

    def _postpone_end(self, mask: np.ndarray, entry: ScheduledSequence) -> None:
        """Take away what would end the sequence too early, unless nothing else is left."""
        params = entry.sequence.params
        num_generated = entry.start + entry.num_tokens - entry.sequence.num_prompt_tokens
        ends: list[int] = []
        if params.ignore_eos or num_generated < params.min_tokens:
            ends += self._eos_token_ids
        if num_generated < params.min_tokens:
            ends += params.stop_token_ids
        if ends:
            without = mask.copy()
            words = without.view(np.uint32)
            for token_id in ends:
                words[token_id // 32] &= np.uint32(~(1 << token_id % 32) & 0xFFFFFFFF)
            if without.any():
                mask[:] = without


def _advanced(entry: ScheduledSequence) -> Matcher:
    """The sequence's matcher, told of all tokens before the one that this step samples."""
    sequence = entry.sequence
    matcher = sequence.matcher
    assert matcher is not None
    end = entry.start + entry.num_tokens
    assert len(sequence.token_ids) >= end, "a constrained sequence is sampled before its tokens are known"
    news = sequence.token_ids[sequence.num_prompt_tokens + matcher.num_tokens : end]
    if news:
        matcher.advance(news)
    return matcher
