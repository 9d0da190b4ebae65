"""A short form of `benchmarks.random_load`: greedy answers under load are those alone."""

from __future__ import annotations

import asyncio
import random

from benchmarks.random_load.mix import Limits
from benchmarks.random_load.run import Options, run
from tests.support.process import ServerProcess


def test_greedy_answers_under_a_random_load_are_those_alone(tight: ServerProcess) -> None:
    """Among preemptions, prefix hits and clients that leave: there have to be some. No block is lost."""
    limits = Limits(257, max_prompt=400, max_output=160, mean_leave_s=0.1, priorities=False)
    options = Options(seconds=1, rate=10, burst=24, num_prompts=4, near_tie=1e-3, limits=limits)
    summary = asyncio.run(run(tight.base_url, options, random.Random(1)))
    assert summary["problems"] == []
    assert summary["equal"] > 10
