"""Which backend and which tiles are taken."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.attention.interface import AttentionShape
from kernels.attention.registry import attention_backend
from kernels.attention.tuning import AttentionTuning, attention_tuning

CPU = torch.device("cpu")
SHAPE = AttentionShape(1, 32, 8, 128, 0.1, 128, torch.bfloat16, CPU)
NUM_SMS = 132


@pytest.fixture(scope="module")
def tuning() -> AttentionTuning:
    return attention_tuning(CPU)


@pytest.mark.parametrize("rows", [1, 3, 16, 64, 512])
@pytest.mark.parametrize("max_context", [1, 500, 40_000])
def test_splits_fill_the_device_and_none_reads_too_much(
    tuning: AttentionTuning, rows: int, max_context: int
) -> None:
    config = tuning.decode_config(SHAPE, rows, max_context, NUM_SMS)
    tiles = -(-max_context // config.block_keys)
    assert 1 <= config.num_splits <= min(tiles, 64)
    split_keys = max(-(-tiles // config.num_splits), config.min_split_tiles) * config.block_keys
    assert split_keys <= max(tuning.max_split_keys, config.block_keys)
    programs = rows * SHAPE.num_kv_heads * config.num_splits
    assert programs >= NUM_SMS or config.num_splits in (tiles, 64)


def test_a_batch_that_fills_the_device_leaves_short_contexts_whole(tuning: AttentionTuning) -> None:
    config = tuning.decode_config(SHAPE, 256, 40_000, NUM_SMS)
    assert config.num_splits > 1
    assert config.min_split_tiles * config.block_keys == tuning.max_split_keys


def test_a_window_needs_no_more_splits_than_its_keys_fill(tuning: AttentionTuning) -> None:
    config = tuning.decode_config(replace(SHAPE, sliding_window=100), 1, 40_000, NUM_SMS)
    assert config.num_splits <= 100 // config.block_keys + 2


@pytest.mark.parametrize(("head_dim", "heads"), [(64, (14, 2)), (80, (32, 8)), (128, (9, 3)), (256, (71, 1))])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tiles_fit(
    tuning: AttentionTuning, head_dim: int, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    shape = AttentionShape(1, *heads, head_dim, 0.1, 128, dtype, CPU)
    prefill = tuning.prefill_config(shape)
    assert prefill.tile_positions(heads[0] // heads[1]) >= 1
    for keys in (prefill.block_keys, tuning.decode_config(shape, 4, 4096, NUM_SMS).block_keys):
        assert keys >= 16
        assert keys & (keys - 1) == 0


def test_backends_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert attention_backend("auto", SHAPE).name == "torch"
    assert attention_backend("torch", SHAPE).name == "torch"
    with pytest.raises(ValueError, match="no attention backend 'fast'"):
        attention_backend("fast", SHAPE)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    for name in ("triton", "flash"):
        with pytest.raises(ValueError, match=f"'{name}' needs a CUDA device"):
            attention_backend(name, SHAPE)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert attention_backend("triton", SHAPE).name == "triton"
    with pytest.raises(ValueError, match="flash-attn 4 needs a CUDA device"):
        attention_backend("flash", SHAPE)
