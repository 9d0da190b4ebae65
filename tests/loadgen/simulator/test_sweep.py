"""The prompts that a calibration begins its contexts with fit whatever server it loads."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.prompts import TokenRange
from loadgen.simulator.sweep import Sweep
from tests.support.simulation import make_profile


@settings(deadline=None, max_examples=30)
@given(
    num_blocks=st.integers(8, 1000),
    max_num_seqs=st.integers(1, 80),
    max_prompt_tokens=st.integers(1, 512),
    prompt_rate=st.floats(1, 1e5),
)
def test_the_library_is_affordable(
    num_blocks: int, max_num_seqs: int, max_prompt_tokens: int, prompt_rate: float
) -> None:
    """In the memory and in time, but for a token that each prompt has at least."""
    limits = replace(make_profile().limits, num_blocks=num_blocks, max_num_seqs=max_num_seqs)
    sweep = Sweep(
        "http://127.0.0.1:1",
        limits,
        seconds=60,
        max_prompt_tokens=max_prompt_tokens,
        token_range=TokenRange(),
    )
    lengths = [len(prompt) for prompt in sweep.new_library(prompt_rate)]
    assert len(lengths) == max_num_seqs
    assert lengths == sorted(lengths, reverse=True)
    assert 1 <= lengths[-1] <= lengths[0] <= max_prompt_tokens
    assert sum(lengths) <= max_num_seqs + min(num_blocks * limits.block_size * 5 / 8, prompt_rate * 60 * 0.14)
