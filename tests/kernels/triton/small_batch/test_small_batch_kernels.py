"""The kernels of the small-batch decode step against plain torch: products, norm, embedding, attention."""

from __future__ import annotations

import pytest
import torch

from kernels.activation import silu_and_mul
from kernels.norm import rms_norm
from kernels.triton.small_batch.embedding import embed_tokens
from kernels.triton.small_batch.epilogue import Epilogue
from kernels.triton.small_batch.gemv import gemv
from kernels.triton.small_batch.residual_norm import residual_norm
from kernels.triton.small_batch.skinny_gemm import skinny_gemm
from kernels.triton.small_batch.split_combine_gemv import split_combine_gemv
from kernels.triton.small_batch.tiles import AttentionTile, LinearTile
from tests.support.decode_attention import AttentionCase

EPS = 1e-6
GEMV_TILES = [LinearTile("gemv", 8, 128, 4, "early"), LinearTile("gemv", 4, 64, 4, "late")]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(11)


def dtype_of(device: torch.device) -> torch.dtype:
    """The interpreter's products are right in fp16 and fp32 only; the GPU runs what it will serve."""
    return torch.bfloat16 if device.type == "cuda" else torch.float16


def assert_near(ours: torch.Tensor, exact: torch.Tensor, bound: float = 1e-2) -> None:
    """Relative error of the whole tensor, each of its rows included."""
    error = (ours.double() - exact.double()).norm(dim=-1) / exact.double().norm(dim=-1)
    assert error.max() < bound, f"relative error {error.max():.1e}"


def random(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.randn(shape, device=device).to(dtype_of(device))


def output_and_expected(
    epilogue: Epilogue, product: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output before the kernel, and in fp32 what it must be after it."""
    if epilogue is Epilogue.ADD:
        out = torch.randn_like(product)
        return out, out + product
    expected = product + bias if bias is not None else silu_and_mul(product)
    return torch.full_like(expected, float("nan"), dtype=dtype), expected


@pytest.mark.parametrize("tile", GEMV_TILES)
@pytest.mark.parametrize(("num_rows", "n", "k"), [(1, 20, 128), (2, 8, 192)])
@pytest.mark.parametrize("epilogue", list(Epilogue))
@pytest.mark.parametrize("normed", [False, True])
def test_gemv(
    device: torch.device, tile: LinearTile, num_rows: int, n: int, k: int, epilogue: Epilogue, normed: bool
) -> None:
    x = torch.randn(num_rows, k, device=device) * 3
    norm_weight = random(device, k) if normed else None
    weight = random(device, 2 * n if epilogue is Epilogue.SILU_AND_MUL else n, k)
    bias = random(device, n) if epilogue is Epilogue.STORE else None
    input_rows = x if norm_weight is None else rms_norm(x.clone(), norm_weight.float(), EPS)
    product = input_rows @ weight.float().T
    out, expected = output_and_expected(epilogue, product, bias, weight.dtype)
    gemv(x, weight, out, tile, epilogue, norm_weight=norm_weight, eps=EPS, bias=bias)
    assert_near(out, expected, 2e-3 if epilogue is Epilogue.ADD else 1e-2)


@pytest.mark.parametrize(("num_rows", "block_n"), [(3, 32), (3, 64), (16, 64), (33, 64)])
@pytest.mark.parametrize(("n", "k"), [(64, 128), (72, 64)])
@pytest.mark.parametrize("epilogue", list(Epilogue))
def test_skinny_gemm(
    device: torch.device, num_rows: int, block_n: int, n: int, k: int, epilogue: Epilogue
) -> None:
    tile = LinearTile("skinny", block_n, 64, 4, "late", num_stages=3)
    x = random(device, num_rows, k)
    weight = random(device, 2 * n if epilogue is Epilogue.SILU_AND_MUL else n, k)
    bias = random(device, n) if epilogue is Epilogue.STORE else None
    product = x.float() @ weight.float().T
    out, expected = output_and_expected(epilogue, product, bias, weight.dtype)
    skinny_gemm(x, weight, out, tile, epilogue, bias=bias)
    assert_near(out, expected)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_split_products_with_the_norm_that_sums_them(device: torch.device, num_rows: int) -> None:
    """Atomics and partials reach the same sums; the norm after them is `rms_norm` of the residual."""
    k, n, splits = 256, 64, 4
    x, weight, norm_weight = random(device, num_rows, k), random(device, n, k), random(device, n)
    residual = torch.randn(num_rows, n, device=device)
    expected = residual + x.float() @ weight.float().T

    by_atomics = residual.clone()
    skinny_gemm(
        x, weight, by_atomics, LinearTile("skinny", 64, 64, 4, splits=splits, reduce="atomic"), Epilogue.ADD
    )
    assert_near(by_atomics, expected, 1e-3)

    partials = torch.full((splits, num_rows, n), float("nan"), device=device)
    tile = LinearTile("skinny", 64, 64, 4, splits=splits, reduce="partials")
    before = residual.clone()
    skinny_gemm(x, weight, residual, tile, Epilogue.ADD, partials=partials)
    assert torch.equal(residual, before)
    normed = torch.empty(num_rows, n, dtype=norm_weight.dtype, device=device)
    residual_norm(residual, norm_weight, normed, EPS, partials=partials)
    assert_near(residual, expected, 1e-3)
    assert_near(normed, rms_norm(expected.clone(), norm_weight.float(), EPS))


def test_norm_alone_leaves_the_residual(device: torch.device) -> None:
    residual, weight = torch.randn(2, 96, device=device) * 5, random(device, 96)
    before, out = residual.clone(), torch.empty(2, 96, dtype=weight.dtype, device=device)
    residual_norm(residual, weight, out, EPS)
    assert torch.equal(residual, before)
    assert_near(out, rms_norm(before.clone(), weight.float(), EPS))


@pytest.mark.parametrize(
    "tile", [LinearTile("skinny", 64, 64, 4, splits=3), LinearTile("skinny", 64, 128, 4)]
)
def test_a_tile_that_does_not_divide_the_product_is_refused(device: torch.device, tile: LinearTile) -> None:
    x, weight, out = random(device, 4, 64), random(device, 64, 64), random(device, 4, 64)
    with pytest.raises(ValueError, match="no product of 4 rows"):
        skinny_gemm(x, weight, out, tile, Epilogue.ADD)


def test_embedding(device: torch.device) -> None:
    table, token_ids = random(device, 40, 96), torch.tensor([39, 0, 7], device=device)
    residual = torch.empty(3, 96, device=device)
    embed_tokens(token_ids, table, residual)
    assert torch.equal(residual, table[token_ids].float())


def attention_case(device: torch.device, lens: list[int]) -> AttentionCase:
    return AttentionCase(device, dtype_of(device), lens, group=2, head_dim=64, block_size=16, normed=True)


ATTENTION_TILES = [
    AttentionTile("dot", block_keys=16, splits=1),
    AttentionTile("dot", block_keys=16, splits=3),
    AttentionTile("single_tile", block_keys=16, splits=4),
    AttentionTile("single_tile", block_keys=64, splits=1, trigger="late"),
]


@pytest.mark.parametrize("tile", ATTENTION_TILES)
@pytest.mark.parametrize(
    ("lens", "group", "head_dim", "block_size", "normed"),
    [([50, 1, 17], 2, 64, 16, True), ([64], 7, 64, 32, False), ([33, 16], 1, 128, 48, True)],
)
def test_attention_with_norm_rotary_and_cache_write(
    device: torch.device,
    tile: AttentionTile,
    lens: list[int],
    group: int,
    head_dim: int,
    block_size: int,
    normed: bool,
) -> None:
    case = AttentionCase(
        device, dtype_of(device), lens, group=group, head_dim=head_dim, block_size=block_size, normed=normed
    )
    expected, keys, values = case.reference()
    out = case.run(tile)
    assert_near(out, expected)
    assert torch.equal(case.values.float(), values)
    assert_near(case.keys, keys, 2e-3 if device.type == "cpu" else 1e-2)


def test_a_row_without_context_yields_finite_values(device: torch.device) -> None:
    """Padding rows of a captured graph have length 0 and write to a spare slot."""
    for tile in ATTENTION_TILES:
        case = attention_case(device, [1])
        case.context.context_lens.zero_()
        assert case.run(tile).isfinite().all()


def test_o_projection_that_combines_splits(device: torch.device) -> None:
    case = attention_case(device, [60])
    expected, _, _ = case.reference()
    partials = case.partials(4)
    out = random(device, 1, case.heads * case.head_dim)
    tile = AttentionTile("single_tile", block_keys=16, splits=4)
    case.attend(tile, out, partials)
    weight, residual = random(device, 20, out.shape[1]), torch.randn(1, 20, device=device)
    before = residual.clone()
    split_combine_gemv(*partials, weight, residual, LinearTile("gemv", 8, 0, 4, "early"))
    assert_near(residual - before, expected.view(1, -1) @ weight.float().T, 5e-3)
