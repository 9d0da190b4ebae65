"""Runs made-up steps before the first request: lazy set-up happens here, and peak memory shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.block_manager import hash_blocks
from engine.config import SchedulerConfig
from engine.record import RequestRecord
from engine.request import Request
from engine.runner.model_runner import ModelRunner
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler

OUTPUT_TOKENS = 2
"""Of each prompt: one by its prefill, one by a decode."""


def warm_up_blocks(num_seqs: int, num_tokens: int, block_size: int) -> int:
    """KV blocks that `warm_up` uses."""
    return num_seqs * -(-(num_tokens + OUTPUT_TOKENS) // block_size)


def warm_up(
    runner: ModelRunner, config: SchedulerConfig, *, num_seqs: int, num_tokens: int, temperature: float = 1.0
) -> None:
    """Prefill `num_seqs` prompts of `num_tokens` tokens together in one step, then decode one token of each.

    Uses blocks from 0 up, so the pool must hold them; nothing stays behind that a later request could see.
    """
    config = replace(
        config,
        num_blocks=warm_up_blocks(num_seqs, num_tokens, config.block_size),
        max_num_seqs=num_seqs,
        max_model_len=num_tokens + OUTPUT_TOKENS,
        max_num_batched_tokens=max(num_seqs * num_tokens, num_seqs),
    )
    scheduler = Scheduler(config, frozenset())
    params = SamplingParams(temperature=temperature, top_p=0.9, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    for i in range(num_seqs):
        prompt = np.zeros(num_tokens, dtype=np.int32)
        hashes = hash_blocks(prompt, config.block_size, b"warm-up %d" % i)
        scheduler.add(Request(f"warm-up-{i}", prompt, params, hashes, RequestRecord(f"warm-up-{i}")))
    while (plan := scheduler.schedule()) is not None:
        scheduler.commit(plan, runner.launch(plan).collect().token_ids)
