"""Every block format against the `gguf` package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize as oracle
from gguf.quants import quantize

from model.weights.dequantize import UNPACKERS, dequantize
from model.weights.gguf_header import BLOCK_TYPES, BlockType

BY_NAME = {block_type.name: block_type for block_type in BLOCK_TYPES.values()}
# Where fp16 scales lie in a block of the formats that `gguf` cannot quantize to.
SCALE_BYTES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def random_blocks(block_type: BlockType, rows: int, columns: int, seed: int) -> np.ndarray:
    """[rows, bytes] uint8: quantized random weights, or random bytes with finite scales."""
    generator = np.random.default_rng(seed)
    if block_type.name not in SCALE_BYTES:
        weights = generator.normal(size=(rows, columns)).astype(np.float32)
        return quantize(weights, gguf.GGMLQuantizationType[block_type.name]).view(np.uint8)
    blocks = generator.integers(
        0, 256, (rows, columns // block_type.block_size, block_type.block_bytes), dtype=np.uint8
    )
    for start in SCALE_BYTES[block_type.name]:
        scales = generator.normal(size=blocks.shape[:2]).astype(np.float16)
        blocks[..., start : start + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("name", list(UNPACKERS))
def test_blocks_equal_the_gguf_packages(name: str) -> None:
    data = random_blocks(BY_NAME[name], rows=48, columns=1024, seed=1)
    expected = oracle(data, gguf.GGMLQuantizationType[name])
    out = torch.full((48, 1024), torch.nan)
    dequantize(torch.from_numpy(data).reshape(-1), BY_NAME[name], out)
    assert np.array_equal(out.numpy(), expected)


def test_types_and_unpackers_are_the_same_set() -> None:
    assert set(UNPACKERS) == set(BY_NAME)
    for code, block_type in BLOCK_TYPES.items():
        kind = gguf.GGMLQuantizationType(code)
        assert (kind.name, *gguf.GGML_QUANT_SIZES[kind]) == tuple(block_type)


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    data = torch.from_numpy(random_blocks(BY_NAME["Q6_K"], rows=5, columns=768, seed=2)).reshape(-1)
    whole = dequantize(data, BY_NAME["Q6_K"], torch.empty(5, 768))
    monkeypatch.setattr("model.weights.dequantize.CHUNK_WEIGHTS", 512)
    assert torch.equal(dequantize(data, BY_NAME["Q6_K"], torch.empty(5, 768)), whole)


def test_a_narrow_target_is_rounded_once() -> None:
    data = torch.from_numpy(random_blocks(BY_NAME["Q4_1"], rows=4, columns=64, seed=3)).reshape(-1)
    exact = dequantize(data, BY_NAME["Q4_1"], torch.empty(4, 64))
    narrow = dequantize(data, BY_NAME["Q4_1"], torch.empty(4, 64, dtype=torch.bfloat16))
    assert torch.equal(narrow, exact.bfloat16())
