"""A short form of `benchmarks.random_load`: greedy answers under load are those alone."""

from __future__ import annotations

import asyncio
import random

from benchmarks.random_load.mix import Limits
from benchmarks.random_load.run import Options, run
from tests.support.process import ServerProcess


def test_greedy_answers_under_a_random_load_are_those_alone(tight: ServerProcess) -> None:
    """Among prefix hits, clients that leave and, as a rule, preemptions. No block is lost."""
    limits = Limits(257, 400, max_output=64, min_prompt=100, mean_leave_s=0.1, priorities=False)
    options = Options(seconds=0.3, rate=10, burst=16, num_prompts=3, near_tie=1e-3, limits=limits)
    summary = asyncio.run(run(tight.base_url, options, random.Random(2)))
    assert summary["problems"] == []
    assert summary["equal"] > 5
    assert summary["controls_noticed"] == summary["controls"] == 3
    assert summary["prefix_cache_hits"] and summary["aborted"]
