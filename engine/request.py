"""What the front end hands to the engine: one client's request, and the tokens of every step back."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from engine.constraint import Constraint
from engine.record import RequestRecord
from engine.sampling_params import SamplingParams

NO_TOKEN = -1
"""Stands in `StepOutput.token_ids` where a sequence ended without a new token."""

_sequence_ids = itertools.count()


class FinishReason(StrEnum):
    STOP = "stop"  # EOS, a stop token id, or a stop string that the front end found
    LENGTH = "length"  # max_tokens or the context limit
    ABORT = "abort"  # the client went away
    ERROR = "error"  # the engine could not go on with it: its constraint takes too much work to follow


class TokenLogprobs(NamedTuple):
    """Log-probabilities at one position, from raw logits (before temperature, penalties and bias)."""

    logprob: float  # of the token at this position
    top_token_ids: list[int]  # most likely first; empty when only the chosen one was asked for
    top_logprobs: list[float]


@dataclass(slots=True)
class Request:
    """One client request; `n` sequences continue the same prompt.

    Made by the front end off the engine thread and immutable to it afterwards, the record aside.
    `prompt_token_ids` is int32, non-empty. `block_hashes` is the hash chain over the prompt's full blocks
    (`engine.block_manager.hash_blocks`), computed once, so that the engine thread never hashes a prompt.
    """

    request_id: str
    prompt_token_ids: np.ndarray
    params: SamplingParams
    block_hashes: list[bytes]
    record: RequestRecord
    n: int = 1
    priority: int = 0  # lower runs first, under the priority policy
    cache_salt: bytes = b""
    constraint: Constraint | None = None  # what the output has to match
    sequence_ids: tuple[int, ...] = field(init=False)  # process-wide unique, one for each of the n

    def __post_init__(self) -> None:
        self.sequence_ids = tuple(next(_sequence_ids) for _ in range(self.n))
        if not self.record.token_times_ns:
            self.record.token_times_ns = [[] for _ in range(self.n)]

    @property
    def ends_at_eos(self) -> bool:
        """A complete constrained output has nowhere else to go, `ignore_eos` or not."""
        return self.constraint is not None or not self.params.ignore_eos


@dataclass(slots=True)
class StepOutput:
    """Everything one engine step tells the front end, columnar: entry i belongs to `sequence_ids[i]`.

    A sequence appears at most once in a step. `finish_reasons[i]` is None while it goes on. `logprobs` and
    `prompt_logprobs` are keyed by sequence id and hold only those that asked; prompt logprobs arrive with the
    sequence's first token, one entry for each prompt token, the first None.
    """

    step: int
    time_ns: int  # monotonic clock, when the tokens were on the host
    sequence_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reasons: list[FinishReason | None] = field(default_factory=list)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs | None]] = field(default_factory=dict)

    def add(self, sequence_id: int, token_id: int, finish_reason: FinishReason | None) -> None:
        self.sequence_ids.append(sequence_id)
        self.token_ids.append(token_id)
        self.finish_reasons.append(finish_reason)
