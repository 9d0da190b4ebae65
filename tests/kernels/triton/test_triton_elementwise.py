"""Norm, activation and rotary kernels in Triton, against the plain functions that they stand in for."""

from __future__ import annotations

import pytest
import torch

from kernels import activation, norm, rotary
from kernels.triton import qk_norm_rotary as fused_qk
from kernels.triton import rms_norm as fused_norm
from kernels.triton import rotary_rows as fused_rows
from kernels.triton import silu_and_mul as fused_silu

# The interpreter cuts bf16 off where devices round it.
BF16 = pytest.param(
    torch.bfloat16,
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")],
)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BF16])
EPS = 1e-6


def randn(*size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size))).to(dtype)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """In half precision: at most one rounding step apart."""
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}[expected.dtype]
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.cpu(), expected.cpu(), atol=tolerance, rtol=tolerance)


@DTYPES
@pytest.mark.parametrize("size", [64, 96])
def test_rms_norm_of_strided_rows(dtype: torch.dtype, size: int, device: torch.device) -> None:
    x, weight = randn(3, size + 5, dtype=dtype)[:, :size] * 3, randn(size, dtype=dtype)
    actual = fused_norm.rms_norm(x.to(device), weight.to(device), EPS)
    assert_close(actual, norm.rms_norm(x, weight, EPS))


@DTYPES
def test_add_rms_norm_overwrites_the_residual(dtype: torch.dtype, device: torch.device) -> None:
    x, residual, weight = randn(3, 48, dtype=dtype), randn(3, 49, dtype=dtype)[:, 1:], randn(48, dtype=dtype)
    residual_here, x_here = residual.clone().to(device), x.to(device)
    expected, total = norm.add_rms_norm(x, residual.clone(), weight, EPS)
    actual, summed = fused_norm.add_rms_norm(x_here, residual_here, weight.to(device), EPS)
    assert summed is residual_here
    assert torch.equal(summed.cpu(), total)
    assert torch.equal(x_here.cpu(), x)
    assert_close(actual, expected)


@DTYPES
def test_silu_and_mul(dtype: torch.dtype, device: torch.device) -> None:
    gate_up = randn(2, 2 * 1100, dtype=dtype) * 4  # more than one block, the last one partial
    assert_close(fused_silu.silu_and_mul(gate_up.to(device)), activation.silu_and_mul(gate_up))


@DTYPES
def test_rotary_rows_are_exact(dtype: torch.dtype, device: torch.device) -> None:
    table, positions = randn(20, 24, dtype=torch.float32), torch.tensor([0, 19, 7, 7])
    expected = rotary.rotary_rows(table, positions, dtype)
    actual = fused_rows.rotary_rows(table.to(device), positions.to(device), dtype)
    for ours, theirs in zip(actual, expected, strict=True):
        assert torch.equal(ours.cpu(), theirs)


@DTYPES
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("heads", "head_dim"), [((4, 1, 1), 16), ((6, 3, 3), 24)])
def test_qk_norm_rotary(
    dtype: torch.dtype, normed: bool, heads: tuple[int, int, int], head_dim: int, device: torch.device
) -> None:
    rows = 3
    qkv = randn(rows, sum(heads), head_dim, dtype=dtype)
    weights = (randn(head_dim, dtype=dtype), randn(head_dim + 1, dtype=dtype)[1:]) if normed else None
    angles = randn(rows, head_dim // 2, dtype=torch.float32) * 20
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)
    cos, sin = rotary.rotary_rows(table, torch.arange(rows), dtype)
    packed = qkv.clone().to(device)
    here = tuple(w.to(device) for w in weights) if weights is not None else None
    fused_qk.qk_norm_rotary(packed, heads, here, EPS, cos.to(device), sin.to(device))
    q, k, v = rotary.norm_and_rotate(qkv.clone(), heads, weights, EPS, cos, sin)
    # The reference rounds once more, between its two products.
    scale = 4 if dtype == torch.bfloat16 else 1
    assert_close(packed[:, : heads[0]] / scale, q / scale)
    assert_close(packed[:, heads[0] : -heads[2]] / scale, k / scale)
    assert torch.equal(packed[:, -heads[2] :].cpu(), v)


def test_no_rows_are_no_work(device: torch.device) -> None:
    empty = torch.empty(0, 32, device=device)
    assert fused_norm.rms_norm(empty, torch.ones(32, device=device), EPS).shape == (0, 32)
    assert fused_silu.silu_and_mul(empty).shape == (0, 16)
