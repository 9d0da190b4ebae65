"""Norm, rotary and activation against the same formulas of transformers, in fp32 and bf16."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from kernels.activation import silu_and_mul
from kernels.kv_write import write_kv
from kernels.norm import add_rms_norm, rms_norm
from kernels.rotary import apply_rotary

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def randn(*size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size))).to(dtype)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """bf16: at most one rounding step apart."""
    tolerance = 1e-6 if actual.dtype == torch.float32 else 2**-7
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@DTYPES
def test_rms_norm(dtype: torch.dtype) -> None:
    x, residual = randn(5, 96, dtype=dtype) * 3, randn(5, 97, dtype=dtype)[:, :96]
    reference = LlamaRMSNorm(96, eps=1e-5).to(dtype)
    reference.weight.data.copy_(randn(96, dtype=dtype))
    with torch.inference_mode():
        weight = reference.weight.detach()
        assert_close(rms_norm(x, weight, 1e-5), reference(x))
        expected_sum = x + residual
        normed, total = add_rms_norm(x, residual.clone(), weight, 1e-5)
        assert torch.equal(total, expected_sum)
        assert_close(normed, reference(expected_sum))


def test_rms_norm_of_tiny_values_is_held_by_eps() -> None:
    x = torch.full((1, 8), 1e-6)
    expected = x * (1e-12 + 1e-5) ** -0.5
    torch.testing.assert_close(rms_norm(x, torch.ones(8), 1e-5), expected)


@DTYPES
def test_rotary(dtype: torch.dtype) -> None:
    tokens, heads, head_dim = 7, 3, 16
    angles = torch.outer(torch.arange(tokens) * 11.0, 10000.0 ** -torch.linspace(0, 1, head_dim // 2))
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    packed = randn(tokens, heads + 2, head_dim, dtype=dtype)
    x, rest = packed[:, :heads], packed[:, heads:].clone()
    expected, _ = apply_rotary_pos_emb(
        x.transpose(0, 1)[None].clone(),
        x.transpose(0, 1)[None].clone(),
        torch.cat((cos, cos), -1)[None],
        torch.cat((sin, sin), -1)[None],
    )
    apply_rotary(x, torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None])
    assert_close(packed[:, :heads], expected[0].transpose(0, 1))
    assert torch.equal(packed[:, heads:], rest)


@DTYPES
def test_silu_and_mul(dtype: torch.dtype) -> None:
    x = randn(4, 2 * 24, dtype=dtype)
    before = x.clone()
    assert_close(silu_and_mul(x), F.silu(x[:, :24]) * x[:, 24:])
    assert torch.equal(x, before)


def test_kv_write_touches_its_slots_alone() -> None:
    keys, values = torch.zeros(2, 12, 4), torch.zeros(2, 12, 4)
    k, v = randn(3, 2, 4, dtype=torch.float32), randn(3, 2, 4, dtype=torch.float32) + 1
    write_kv(keys, values, k, v, torch.tensor([7, 0, 11]))
    for row, slot in enumerate((7, 0, 11)):
        assert torch.equal(keys[:, slot], k[row])
        assert torch.equal(values[:, slot], v[row])
    untouched = [slot for slot in range(12) if slot not in (7, 0, 11)]
    assert not keys[:, untouched].any()
    assert not values[:, untouched].any()
