"""The padding that a runner tells is the one that it does."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.config import SchedulerConfig
from engine.plan import ScheduledSequence, StepPlan
from engine.runner.capture import EagerCapture
from engine.runner.graph_runner import GraphModelRunner
from loadgen.simulator.padding import Padding
from loadgen.simulator.step_shape import StepShape
from tests.support.decoders import build_decoder
from tests.support.graph_engines import GraphTorchAttention
from tests.support.tiny_models import make_tiny_model

NOBODY: Any = None


def make_plan(num_decodes: int, chunks: list[int]) -> StepPlan:
    decodes = [ScheduledSequence(NOBODY, 0, 0, 1, True)] * num_decodes
    return StepPlan(0, decodes, [ScheduledSequence(NOBODY, 0, 0, rows, True) for rows in chunks])


def test_a_runner_pads_as_it_says() -> None:
    model, _ = make_tiny_model("qwen3")
    decoder = build_decoder(model, block_size=4, num_blocks=1)
    attention = GraphTorchAttention(decoder.attention.shape)
    attention.allocate(2)
    config = SchedulerConfig(
        max_num_seqs=200, max_num_batched_tokens=600, max_model_len=600, block_size=4, num_blocks=200
    )
    runner = GraphModelRunner(decoder, attention, config, frozenset(), 0, EagerCapture())
    padding = Padding.from_json(runner.padding)
    rng = np.random.default_rng(0)
    eager = 0
    for _ in range(500):
        num_decodes = int(rng.choice([0, 1, 5, 17, 120, 150, 200]))
        chunks = rng.integers(1, 400, int(rng.integers(0, 4))).tolist()
        if not num_decodes and not chunks:
            continue
        plan = make_plan(num_decodes, chunks)
        if chunks:
            key = runner._mixed_graphs.key_of(plan)
            expected = plan.num_tokens if key is None else key[0]
            eager += key is None
        else:
            key, expected = None, runner._size(plan)
        shape = StepShape(num_decodes, 0, len(chunks), sum(chunks), 0)
        assert padding.rows_of(shape) == expected
        assert padding.is_eager(shape) == (bool(chunks) and key is None)
    assert 0 < eager < 400


def test_without_sizes_nothing_is_padded() -> None:
    assert Padding().rows_of(StepShape(7, 0, 0, 0, 0)) == 7
    assert Padding.from_json(None).rows_of(StepShape(7, 0, 2, 30, 0)) == 37
