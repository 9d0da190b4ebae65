"""Which tokens the constrained sequences of a batch may get next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from engine.plan import ScheduledSequence
from engine.sequence import PENDING_TOKEN, Sequence, SequenceStatus


@dataclass(slots=True)
class TokenMasks:
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
        stuck = []
        for mask, entry in zip(masks, constrained, strict=True):
            if entry.sequence.status is SequenceStatus.FINISHED:
                continue  # by one of those steps: what it samples now is dropped
            if not self._fill(mask, entry):
                stuck.append(entry.sequence.sequence_id)
        return TokenMasks(masks, stuck)

    def _fill(self, mask: np.ndarray, entry: ScheduledSequence) -> bool:
        sequence = entry.sequence
        matcher = sequence.matcher
        assert matcher is not None
        begin = sequence.num_prompt_tokens + matcher.num_tokens
        end = entry.start + entry.num_tokens
        news = sequence.token_ids[begin:end]
        assert PENDING_TOKEN not in news, "a constrained sequence is sampled before its tokens are known"
        if news:
            matcher.advance(news)
        if not matcher.fill(mask):
            mask.fill(-1)
            return False
        self._postpone_end(mask, sequence, end - sequence.num_prompt_tokens)
        return True

    def _postpone_end(self, mask: np.ndarray, sequence: Sequence, num_generated: int) -> None:
        """Take away what would end the sequence too early, unless nothing else is left."""
        params = sequence.params
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
