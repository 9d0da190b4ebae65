"""A graph runner whose device computes nothing: all of the host's work of a step, and none of the waiting."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from engine.config import SchedulerConfig
from engine.runner.graph_runner import GraphModelRunner
from model.decoder import Decoder

_VOCAB_SIZE = 8
EOS_TOKEN_ID = 7  # never sampled: where nothing computes, every token is 0


class _NoDecoder:
    """In place of `model.decoder.Decoder`: zeros for everything."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(vocab_size=_VOCAB_SIZE)
        self.lm_head = SimpleNamespace(weight=torch.zeros(1))
        self.model = SimpleNamespace(layers=SimpleNamespace(parameters=lambda: [torch.zeros(1)]))

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, plan: Any, wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        return torch.zeros(len(token_ids if wanted is None else wanted), 1)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(hidden), _VOCAB_SIZE)


class _NoAttention:
    """A `GraphAttentionBackend` and `AttentionBackend` that attends to nothing."""

    name = "none"
    shape = SimpleNamespace(device=torch.device("cpu"))

    def allocate(self, num_blocks: int) -> None: ...

    def plan(self, batch: Any) -> None: ...

    def plan_decode(self, batch: Any) -> None: ...

    def plan_chunks(self, chunks: Any, decodes: Any = None) -> None: ...

    def forward(self, *_: Any) -> torch.Tensor:
        raise AssertionError("there are no layers")

    def chunk_schedule_size(self, num_rows: int, num_chunks: int) -> int:
        return 1

    def chunk_schedule(self, *_: Any) -> np.ndarray:
        return np.zeros(1, dtype=np.int32)


def _capture(function: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
    """A `Capture` whose replay, which on a GPU only tells the device to begin, does nothing."""
    return (lambda: None), function()


def make_runner(config: SchedulerConfig) -> GraphModelRunner:
    decoder = cast(Decoder, _NoDecoder())
    return GraphModelRunner(
        decoder, cast(Any, _NoAttention()), config, frozenset({EOS_TOKEN_ID}), 0, _capture
    )
