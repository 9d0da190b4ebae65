"""A made-up profile and loads for tests of the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.config import SchedulerConfig
from loadgen.schedule import ScheduledRequest
from loadgen.simulator.profile import FrontEndCosts, HostCosts, Line, Profile
from loadgen.simulator.step_model import Curve, RoomCost, StepCost, StepModel

STEP_MODEL = StepModel(
    decode_only=StepCost(
        rows=Curve([1, 8, 9, 32], [0.004, 0.005, 0.007, 0.009]),
        slopes={"decode_context": 1e-7},
    ),
    with_chunks=StepCost(
        rows=Curve([1, 256], [0.005, 0.024]),
        slopes={"decode_context": 1e-7, "num_chunks": 1e-4, "chunk_work": 1e-9},
        rooms=[RoomCost(0.001)],
    ),
)


def make_profile(
    *, depth: int = 2, blocking: bool = False, host: HostCosts | None = None, **limits: Any
) -> Profile:
    settings = {
        "max_num_seqs": 16,
        "max_num_batched_tokens": 256,
        "max_model_len": 2048,
        "block_size": 16,
        "num_blocks": 256,
        **limits,
    }
    return Profile(
        limits=SchedulerConfig(**settings),
        pipeline_depth=depth,
        blocking_launch=blocking,
        step=STEP_MODEL,
        host=host or HostCosts(),
        front_end=FrontEndCosts(before=Line(0.001), delivery=Line(0.0005)),
        source={"model": "made-up", "machine": None, "octavo_version": "0"},
    )


def random_load(
    count: int, *, rate: float = 20.0, seed: int = 0, longest_prompt: int = 600, longest_output: int = 60
) -> list[ScheduledRequest]:
    """Poisson arrivals; half of the prompts begin with one of a few shared prefixes of two blocks of 64."""
    rng = np.random.default_rng(seed)
    due_ns = np.cumsum(rng.exponential(1e9 / rate, count)).astype(int).tolist()
    load = []
    for index, due in enumerate(due_ns):
        tokens = int(rng.integers(1, longest_prompt + 1))
        ids = [1000 * index + i for i in range(-(-tokens // 64))]
        group = 1_000_000 + 10 * int(rng.integers(8))
        ids[:2] = [group, group + 1][: len(ids)] if group < 1_000_040 else ids[:2]
        output = int(rng.integers(1, longest_output + 1))
        load.append(ScheduledRequest(index, due, tokens, output, index, hash_ids=tuple(ids)))
    return load
