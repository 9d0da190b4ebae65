"""The Triton backend against the torch backend, over decodes, chunks on cached prefixes and mixed steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.attention.interface import AttentionShape
from kernels.attention.registry import attention_backend
from kernels.attention.triton_backend import TritonAttention
from kernels.triton.attention_decode import DecodeConfig
from kernels.triton.attention_prefill import PrefillConfig, query_tiles
from tests.support.attention_steps import TwinCaches


def backend(device: torch.device, **changes: Any) -> TritonAttention:
    """One layer of four query heads over two KV heads."""
    shape = AttentionShape(1, 4, 2, 32, 0.2, 16, torch.float32, device)
    attention = TritonAttention(replace(shape, **changes))
    attention.prefill_config = PrefillConfig(block_rows=64, block_keys=32, num_warps=4, num_stages=2)
    return attention


def cut_decodes(attention: TritonAttention, **config: int) -> None:
    """Every decode of `attention` is cut up so, whatever the device."""
    fixed = DecodeConfig(**{"block_keys": 16, "num_warps": 4, "num_stages": 2, "num_splits": 3, **config})
    tuning = replace(attention.tuning)
    object.__setattr__(attention, "tuning", _FixedDecodes(tuning, fixed))


class _FixedDecodes:
    def __init__(self, tuning: Any, config: DecodeConfig) -> None:
        self.tuning, self.config = tuning, config

    def decode_config(self, *args: Any) -> DecodeConfig:
        return self.config


EXACT = {"atol": 1e-5, "rtol": 1e-4}


@pytest.mark.parametrize(
    ("changes", "config"),
    [
        ({"num_layers": 2}, {}),
        ({"head_dim": 20, "num_heads": 3, "num_kv_heads": 1}, {"num_splits": 2}),
        ({"sliding_window": 21}, {}),
        ({"sliding_window": 1}, {"num_splits": 2}),
        ({"block_size": 32}, {"num_splits": 1}),
        ({}, {"block_keys": 32, "min_split_tiles": 2}),
    ],
)
def test_decodes(device: torch.device, changes: dict[str, Any], config: dict[str, int]) -> None:
    attention = backend(device, **changes)
    cut_decodes(attention, **config)
    cached = [47, 1, 80]
    twins = TwinCaches(attention, 20, seed=1)
    for length in cached:
        twins.add(length + 2)
    twins.step([(0, length) for length in cached], **EXACT)
    twins.decode(cached, padding=1, max_context=100, **EXACT)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"head_dim": 20, "num_heads": 3, "num_kv_heads": 1},
        {"sliding_window": 18},
        {"block_size": 8},  # a tile spans blocks
        {"num_heads": 10, "num_kv_heads": 2},  # five heads in a tile of 16 rows: one is left over
        {"dtype": torch.float16},
    ],
)
def test_mixed_steps(device: torch.device, changes: dict[str, Any]) -> None:
    attention = backend(device, **changes)
    cut_decodes(attention)
    twins = TwinCaches(attention, 40, seed=2)
    lens = [(33, 1), (0, 5), (20, 13)]
    for cached, new in lens:
        twins.add(cached + new)
    tolerance = EXACT if attention.shape.dtype == torch.float32 else {"atol": 2e-3, "rtol": 2e-2}
    twins.step([(0, max(cached, 1)) for cached, _ in lens], **tolerance)
    twins.step(lens, **tolerance)


def test_captured_mixed_steps(device: torch.device) -> None:
    attention = backend(device)
    cut_decodes(attention)
    twins = TwinCaches(attention, 40, seed=4)
    lens = [(33, 1), (2, 1), (0, 5), (20, 13)]
    for cached, new in lens:
        twins.add(cached + new + 1)
    twins.step([(0, max(cached, 1)) for cached, _ in lens], **EXACT)
    twins.mixed(lens, room=6, num_rows=24, **EXACT)
    twins.mixed([(34, 1), (3, 1), (5, 1), (32, 2)], room=3, num_rows=8, **EXACT)


def test_what_lies_past_a_context_does_not_matter(device: torch.device) -> None:
    attention = backend(device)
    cut_decodes(attention)
    twins = TwinCaches(attention, 6, seed=3)
    for tensor in attention.caches[0]:
        tensor.fill_(float("nan"))
    for length in (37, 22):
        twins.add(length)
    twins.step([(0, 36), (0, 3)], **EXACT)
    twins.step([(36, 1), (3, 19)], **EXACT)


def test_pool_is_zeroed_and_has_a_spare_block(device: torch.device) -> None:
    attention = backend(device)
    attention.allocate(5)
    for tensor in attention.caches[0]:
        assert tensor.shape == (6, 16, 2, 32)
        assert not tensor.any()


def test_tiles_cover_every_query_once_and_long_contexts_come_first() -> None:
    query_lens, context_lens = [5, 1, 12], [5, 40, 20]
    chunks, firsts = query_tiles(query_lens, context_lens, positions=4)
    covered = sorted(
        (chunk, row)
        for chunk, first in zip(chunks, firsts, strict=True)
        for row in range(first, min(first + 4, query_lens[chunk]))
    )
    assert covered == [(chunk, row) for chunk, rows in enumerate(query_lens) for row in range(rows)]
    seen = [context_lens[c] - query_lens[c] + f for c, f in zip(chunks, firsts, strict=True)]
    assert seen == sorted(seen, reverse=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["triton", "flash"])
@pytest.mark.parametrize("flash_decode_pairs", [None, 0])
@pytest.mark.parametrize(
    ("heads", "head_dim", "block_size", "window"),
    [((32, 8), 128, 128, None), ((16, 8), 128, 16, None), ((14, 2), 64, 128, None), ((32, 8), 128, 128, 200)],
)
def test_real_sizes_in_bf16(
    device: torch.device,
    name: str,
    flash_decode_pairs: int | None,
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    window: int | None,
) -> None:
    """With the tiles of this device; a decode of 1,300 positions has several splits."""
    shape = AttentionShape(1, *heads, head_dim, head_dim**-0.5, block_size, torch.bfloat16, device, window)
    try:
        attention: Any = attention_backend(name, shape)
    except ValueError as error:
        pytest.skip(str(error))
    attention.tuning = replace(attention.tuning, flash_decode_pairs=flash_decode_pairs)
    lens = [(1300, 1), (5, 1), (127, 1), (0, 300), (900, 257)]
    twins = TwinCaches(attention, 250, seed=6)
    for cached, new in lens:
        twins.add(cached + new)
    tolerance = {"atol": 2e-2, "rtol": 2e-2}
    twins.step([(0, max(cached, 1)) for cached, _ in lens], **tolerance)
    twins.step(lens, **tolerance)
    twins.mixed(lens, room=128, num_rows=640, **tolerance)
    twins.tables = twins.tables[:3]
    twins.decode([1300, 5, 127], padding=13, max_context=4096, **tolerance)
