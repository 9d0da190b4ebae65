"""Compiles a GPU's kernels side by side before they are needed: one after the other they take half a minute.

Compilers work outside the interpreter most of the time, so threads are enough. What is run here for that is
made up, and what it computes means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from kernels.attention.interface import AttentionBatch
from kernels.sampling import Restriction, sample_tokens
from model.decoder import Decoder

_NUM_THREADS = 8
_NUM_ROWS = 64


def run_side_by_side(functions: Sequence[Callable[[], object]], device: torch.device) -> None:
    """Call each function in a thread, on the same device and stream. Raises what one of them raises."""

    def run(function: Callable[[], object]) -> None:
        with torch.cuda.device(device), torch.inference_mode():
            function()

    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        list(pool.map(run, functions))


def compile_kernels(decoder: Decoder) -> None:
    """Those of eager steps and of sampling. Replaces the KV pool."""
    device = decoder.attention.shape.device
    decoder.attention.allocate(_NUM_ROWS + 1)
    steps = [
        lambda: _step(decoder, query_lens=[_NUM_ROWS]),
        lambda: _step(decoder, query_lens=[1] * _NUM_ROWS),
        lambda: _sample(decoder, torch.float32, restricted=True),
        lambda: _sample(decoder, torch.float32, restricted=False),
        lambda: _sample(decoder, decoder.lm_head.weight.dtype, restricted=False),
    ]
    run_side_by_side(steps, device)
    torch.cuda.synchronize(device)


def _step(decoder: Decoder, query_lens: list[int]) -> None:
    """A step of new sequences: one prompt, or `_NUM_ROWS` rows that count as decodes."""
    shape = decoder.attention.shape
    num_seqs, num_blocks = len(query_lens), -(-_NUM_ROWS // shape.block_size)
    rows = torch.arange(_NUM_ROWS, device=shape.device)
    batch = AttentionBatch(
        num_decodes=num_seqs if num_seqs == _NUM_ROWS else 0,
        query_lens=query_lens,
        context_lens=query_lens,
        block_tables=torch.zeros(num_seqs, num_blocks, dtype=torch.int32, device=shape.device),
        slots=rows,
    )
    decoder(torch.zeros_like(rows), rows, decoder.attention.plan(batch))


def _sample(decoder: Decoder, dtype: torch.dtype, restricted: bool) -> None:
    device = decoder.attention.shape.device
    logits = torch.zeros(_NUM_ROWS, decoder.config.vocab_size, dtype=dtype, device=device)
    ones = torch.ones(_NUM_ROWS, device=device)
    indices = torch.arange(_NUM_ROWS, device=device)
    restriction = Restriction(indices, 0.9 * ones, 0.1 * ones) if restricted else None
    sample_tokens(logits, ones, indices, indices, restriction)
