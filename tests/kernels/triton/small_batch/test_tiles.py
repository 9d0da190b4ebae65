"""Tile tables and defaults: whatever is chosen for a model must be what the kernels can run."""

from __future__ import annotations

import json

import pytest

from kernels.triton.small_batch.gemv import MAX_GEMV_ROWS
from kernels.triton.small_batch.tiles import (
    MAX_ROW_SPLITS,
    MAX_SPLITS,
    TUNED_FILE,
    StepShape,
    StepTiles,
    default_tiles,
    most_rows,
    step_tiles,
)

SHAPES = {
    "qwen3-0.6b": StepShape(1024, 3072, 16, 8, 128),
    "qwen3-8b": StepShape(4096, 12288, 32, 8, 128),
    "qwen2.5-0.5b": StepShape(896, 4864, 14, 2, 64),
    "qwen2.5-7b": StepShape(3584, 18944, 28, 4, 128),
    "llama3-8b": StepShape(4096, 14336, 32, 8, 128),
    "llama2-7b": StepShape(4096, 11008, 32, 32, 128),
    "tiny": StepShape(64, 64, 1, 1, 64),
}
CONTEXTS = [1, 100, 512, 1024, 4096, 32768, 131072]


def assert_fit(tiles: StepTiles, shape: StepShape, num_rows: int, max_context: int) -> None:
    q_size = shape.num_heads * shape.head_dim
    inner = {
        "qkv": shape.hidden_size,
        "o": q_size,
        "gate_up": shape.hidden_size,
        "down": shape.intermediate_size,
        "lm_head": shape.hidden_size,
    }
    for kind, k in inner.items():
        tile = getattr(tiles, kind)
        if tile.kernel == "gemv":
            assert num_rows <= MAX_GEMV_ROWS
        else:
            assert k % (tile.splits * tile.block_k) == 0
            assert tile.splits <= MAX_SPLITS
            assert tile.splits == 1 or kind in ("o", "down")
    attention = tiles.attention
    assert 1 <= attention.splits <= MAX_ROW_SPLITS // num_rows
    assert attention.kernel == "dot" or attention.splits * attention.block_keys >= max_context
    assert attention.combine == "kernel" or (num_rows == 1 and tiles.o.kernel == "gemv")


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("device", ["NVIDIA H200", "another"])
def test_tiles_fit_the_kernels(name: str, device: str) -> None:
    for num_rows in [*range(1, 17), most_rows(device, SHAPES[name])]:
        for max_context in CONTEXTS:
            tiles = step_tiles(device, SHAPES[name], num_rows, max_context)
            assert_fit(tiles, SHAPES[name], num_rows, max_context)


def test_the_table_is_used_for_its_device_and_shape() -> None:
    for entry in json.loads(TUNED_FILE.read_text()):
        shape, device = StepShape(**entry["shape"]), entry["device"]
        assert entry["batches"][-1]["max_rows"] == most_rows(device, shape) >= 16
        tuned = step_tiles(device, shape, 1, 512)
        assert tuned != default_tiles(shape, 1, 512)
        assert tuned.qkv.block_n == entry["batches"][0]["qkv"]["block_n"]
        assert step_tiles("another", shape, 1, 512) == default_tiles(shape, 1, 512)
