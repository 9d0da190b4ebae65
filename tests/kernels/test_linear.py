"""The linear layer's ways round are one product."""

import pytest
import torch
import torch.nn.functional as F

from kernels.half_weight import HalfWeight, has_half_weights
from kernels.linear import linear


@pytest.mark.parametrize("rows", [1, 2, 8, 32, 33])
@pytest.mark.parametrize("shape", [(96, 64), (64, 96), (64, 64)])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_equals_the_plain_layer(
    rows: int, shape: tuple[int, int], has_bias: bool, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, shape[1], generator=generator).to(dtype)
    weight = torch.randn(shape, generator=generator).to(dtype)
    bias = torch.randn(shape[0], generator=generator).to(dtype) if has_bias else None
    result = linear(x, weight, bias)
    assert result.is_contiguous()
    assert result.dtype == dtype
    torch.testing.assert_close(result, F.linear(x, weight, bias))


@pytest.mark.skipif(not has_half_weights(), reason="torch without FBGEMM")
@pytest.mark.parametrize("rows", [0, 1, 8, 33])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_half_weight_is_a_rounded_weight(rows: int, has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(72, 40, generator=generator)
    bias = torch.randn(72, generator=generator) if has_bias else None
    x = torch.randn(rows, 80, generator=generator)[:, ::2]
    result = linear(x, HalfWeight(weight), bias)
    assert result.is_contiguous()
    torch.testing.assert_close(result, F.linear(x, weight.half().float(), bias))
