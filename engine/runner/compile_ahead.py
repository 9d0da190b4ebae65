"""Compiles a GPU's kernels side by side before they are needed: one after the other they take half a minute.

Compilers work outside the interpreter most of the time, so threads are enough. What is run here for that is
made up, and what it computes means nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import torch

from kernels.attention.interface import AttentionBatch
from kernels.sampling import Restriction, apply_token_masks, sample_tokens
from model.decoder import Decoder

_NUM_THREADS = 8
_NUM_ROWS = 64
_MANY_ROWS = 512  # from somewhere below on, kernels do without programmatic launches
# (rows, context) of decodes that take different kernels: attention splits long contexts of few rows.
_DECODES = ((1, 4096), (8, 4096), (_NUM_ROWS, _NUM_ROWS))


def run_side_by_side(functions: Sequence[Callable[[], object]], device: torch.device) -> None:
    """Call each function in a thread, on the same device and stream. Raises what one of them raises.

    On other devices than GPUs they are called one after the other.
    """
    if device.type != "cuda":
        for function in functions:
            function()
        return
    from kernels.triton.launcher_loading import load_launchers_in_turns

    load_launchers_in_turns()

    def run(function: Callable[[], object]) -> None:
        with torch.cuda.device(device), torch.inference_mode():
            function()

    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        list(pool.map(run, functions))


def begin_with_triton() -> None:
    """Have Triton hash its own library, hundreds of megabytes, which it does before its first kernel."""

    def hash_library() -> None:
        with suppress(ImportError):
            from triton.runtime.cache import triton_key

            triton_key()

    threading.Thread(target=hash_library, name="octavo-triton", daemon=True).start()


def compile_kernels(decoder: Decoder, max_num_seqs: int) -> None:
    """Those of eager steps and of sampling. Replaces the KV pool."""
    device = decoder.attention.shape.device
    run_side_by_side(eager_steps(decoder, max_num_seqs), device)
    torch.cuda.synchronize(device)


def eager_steps(decoder: Decoder, max_num_seqs: int) -> list[Callable[[], object]]:
    """Steps and draws that launch, all together, every kernel outside of graphs. Replaces the KV pool."""
    most = max(_MANY_ROWS, max_num_seqs)
    decoder.attention.allocate(max(_NUM_ROWS, -(-most // decoder.attention.shape.block_size)) + 1)
    return [
        lambda: _prompt_step(decoder, _NUM_ROWS),
        lambda: _prompt_step(decoder, _MANY_ROWS),
        *(partial(_decode_step, decoder, num_rows, context) for num_rows, context in _DECODES),
        lambda: _decode_step(decoder, max_num_seqs, _NUM_ROWS),
        lambda: _mask(decoder),
        *(
            partial(_sample, decoder, dtype, restricted)
            for dtype in (torch.float32, decoder.lm_head.weight.dtype)
            for restricted in (True, False)
        ),
    ]


def _prompt_step(decoder: Decoder, num_rows: int) -> None:
    _step(decoder, [num_rows], [num_rows], num_decodes=0)


def _decode_step(decoder: Decoder, num_rows: int, context: int) -> None:
    _step(decoder, [1] * num_rows, [context] * num_rows, num_decodes=num_rows)


def _step(decoder: Decoder, query_lens: list[int], context_lens: list[int], num_decodes: int) -> None:
    """Every sequence has the same block, over and over."""
    shape = decoder.attention.shape
    num_seqs, num_blocks = len(query_lens), -(-max(context_lens) // shape.block_size)
    rows = torch.arange(sum(query_lens), device=shape.device)
    batch = AttentionBatch(
        num_decodes=num_decodes,
        query_lens=query_lens,
        context_lens=context_lens,
        block_tables=torch.zeros(num_seqs, num_blocks, dtype=torch.int32, device=shape.device),
        slots=rows,
    )
    decoder(torch.zeros_like(rows), rows, decoder.attention.plan(batch))


def _mask(decoder: Decoder) -> None:
    device, vocab_size = decoder.attention.shape.device, decoder.config.vocab_size
    logits = torch.zeros(1, vocab_size, device=device)
    bits = torch.zeros(1, -(-vocab_size // 32), dtype=torch.int32, device=device)
    apply_token_masks(logits, torch.zeros(1, dtype=torch.int64, device=device), bits)


def _sample(decoder: Decoder, dtype: torch.dtype, restricted: bool) -> None:
    device = decoder.attention.shape.device
    logits = torch.zeros(_NUM_ROWS, decoder.config.vocab_size, dtype=dtype, device=device)
    ones = torch.ones(_NUM_ROWS, device=device)
    indices = torch.arange(_NUM_ROWS, device=device)
    restriction = Restriction(indices, 0.9 * ones, 0.1 * ones) if restricted else None
    sample_tokens(logits, ones, indices, indices, restriction)
