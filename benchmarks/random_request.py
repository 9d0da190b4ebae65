"""A request of random tokens, for benchmarks that hand requests to an engine or a scheduler themselves."""

from __future__ import annotations

import numpy as np

from engine.block_manager import hash_blocks
from engine.record import RequestRecord
from engine.request import Request
from engine.sampling_params import SamplingParams


def random_request(
    rng: np.random.Generator, num_tokens: int, params: SamplingParams, block_size: int, *, token_ids: range
) -> Request:
    """With a prompt of so many of `token_ids`, and a name and block hashes that no other one has."""
    prompt = rng.integers(token_ids.start, token_ids.stop, num_tokens).astype(np.int32)
    name = f"request-{rng.integers(1 << 62)}"
    return Request(name, prompt, params, hash_blocks(prompt, block_size, name.encode()), RequestRecord(name))
