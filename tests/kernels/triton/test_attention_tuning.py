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


@pytest.mark.parametrize("kv_heads", [1, 2, 8, 24, 1024])
def test_ranges_fill_the_device(tuning: AttentionTuning, kv_heads: int) -> None:
    config = tuning.decode_config(replace(SHAPE, num_heads=kv_heads, num_kv_heads=kv_heads), NUM_SMS)
    programs, room = config.num_ranges * kv_heads, tuning.decode["programs_per_sm"] * NUM_SMS
    assert config.num_ranges == 1 or room - kv_heads < programs <= room


@pytest.mark.parametrize(("head_dim", "heads"), [(64, (14, 2)), (80, (32, 8)), (128, (9, 3)), (256, (71, 1))])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tiles_fit(
    tuning: AttentionTuning, head_dim: int, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    shape = AttentionShape(1, *heads, head_dim, 0.1, 128, dtype, CPU)
    prefill = tuning.prefill_config(shape)
    assert prefill.tile_positions(heads[0] // heads[1]) >= 1
    for keys in (prefill.block_keys, tuning.decode_config(shape, NUM_SMS).block_keys):
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
