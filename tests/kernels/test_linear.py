"""The linear layer's ways round are one product."""

import pytest
import torch
import torch.nn.functional as F

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
