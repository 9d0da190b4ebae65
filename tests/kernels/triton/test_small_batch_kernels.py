"""The kernels of the small-batch decode step against plain torch: products, norm, embedding, attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.activation import silu_and_mul
from kernels.norm import rms_norm
from kernels.rotary import apply_rotary
from kernels.triton.decode_attention_fused import DecodeContext, HeadNorms, fused_decode_attention
from kernels.triton.embedding import embed_tokens
from kernels.triton.epilogue import Epilogue
from kernels.triton.gemv import gemv
from kernels.triton.residual_norm import residual_norm
from kernels.triton.skinny_gemm import skinny_gemm
from kernels.triton.split_combine import split_combine
from kernels.triton.split_combine_gemv import split_combine_gemv
from kernels.triton.tiles import AttentionTile, LinearTile

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


@pytest.mark.parametrize("tile", GEMV_TILES)
@pytest.mark.parametrize(("num_rows", "n", "k"), [(1, 20, 128), (2, 16, 192)])
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
    out = torch.full((num_rows, n), float("nan"), dtype=weight.dtype, device=device)
    if epilogue is Epilogue.STORE:
        expected = product + bias
    elif epilogue is Epilogue.ADD:
        out = torch.randn(num_rows, n, device=device)
        expected = out + product
    else:
        expected = silu_and_mul(product)
    gemv(x, weight, out, tile, epilogue, norm_weight=norm_weight, eps=EPS, bias=bias)
    assert_near(out, expected, 2e-3 if epilogue is Epilogue.ADD else 1e-2)


@pytest.mark.parametrize("num_rows", [1, 5, 16])
@pytest.mark.parametrize(("n", "k"), [(64, 128), (72, 64)])
@pytest.mark.parametrize("epilogue", list(Epilogue))
def test_skinny_gemm(device: torch.device, num_rows: int, n: int, k: int, epilogue: Epilogue) -> None:
    tile = LinearTile("skinny", 64, 64, 4, "late", num_stages=3)
    x = random(device, num_rows, k)
    weight = random(device, 2 * n if epilogue is Epilogue.SILU_AND_MUL else n, k)
    bias = random(device, n) if epilogue is Epilogue.STORE else None
    product = x.float() @ weight.float().T
    out = torch.full((num_rows, n), float("nan"), dtype=weight.dtype, device=device)
    if epilogue is Epilogue.STORE:
        expected = product + bias
    elif epilogue is Epilogue.ADD:
        out = torch.randn(num_rows, n, device=device)
        expected = out + product
    else:
        expected = silu_and_mul(product)
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


class AttentionCase:
    """Random qkv rows and caches, blocks in a scattered order, and what attention over them gives."""

    def __init__(
        self, device: torch.device, lens: list[int], group: int, head_dim: int, block_size: int, normed: bool
    ) -> None:
        dtype, kv_heads, num_rows = dtype_of(device), 2, len(lens)
        self.heads, self.kv_heads, self.head_dim = kv_heads * group, kv_heads, head_dim
        blocks_per_row = -(-max(lens) // block_size)
        num_blocks = num_rows * blocks_per_row
        shape = (num_blocks + 1, block_size, kv_heads, head_dim)
        self.keys = torch.randn(shape, device=device).to(dtype)
        self.values = torch.randn(shape, device=device).to(dtype)
        self.qkv = torch.randn(num_rows, (self.heads + 2 * kv_heads) * head_dim, device=device).to(dtype) * 2
        tables = torch.randperm(num_blocks, device=device).to(torch.int32).view(num_rows, blocks_per_row)
        positions = torch.tensor(lens, device=device) - 1
        blocks = tables.gather(1, (positions // block_size)[:, None]).squeeze(1).long()
        angles = torch.outer(
            torch.arange(max(lens), device=device), 1.1 ** -torch.arange(head_dim // 2, device=device)
        )
        self.context = DecodeContext(
            tables,
            positions.to(torch.int32) + 1,
            blocks * block_size + positions % block_size,
            positions,
            torch.cat((angles.cos(), angles.sin()), dim=-1).float(),
        )
        self.norms = HeadNorms(random(device, head_dim), random(device, head_dim), EPS) if normed else None
        self.scale = head_dim**-0.5

    def run(self, tile: AttentionTile) -> torch.Tensor:
        num_rows = len(self.qkv)
        out = torch.full_like(self.qkv[:, : self.heads * self.head_dim], float("nan")).contiguous()
        partials = self.partials(tile.splits)
        fused_decode_attention(
            self.qkv, self.keys, self.values, self.context, self.norms, out, *partials, tile, self.scale
        )
        if tile.splits > 1:
            assert out.isnan().all()
            split_combine(*partials, out)
        return out.view(num_rows, self.heads, self.head_dim)

    def partials(self, splits: int) -> tuple[torch.Tensor, torch.Tensor]:
        sizes = ((len(self.qkv), self.heads, splits, size) for size in (self.head_dim, 2))
        out, sums = (torch.full(size, float("nan"), device=self.qkv.device) for size in sizes)
        return out, sums

    def reference(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(out, keys, values) in fp32: the caches with the new rows written, then attention row by row."""
        c, sizes = self.context, (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = self.qkv.float().view(len(self.qkv), -1, self.head_dim).split(sizes, dim=1)
        cos, sin = c.rotary_table[c.positions].unsqueeze(1).chunk(2, dim=-1)
        rotary = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        if self.norms is not None:
            q = rms_norm(q, self.norms.q_weight.float(), EPS)
            k = rms_norm(k, self.norms.k_weight.float(), EPS)
        q, k = apply_rotary(q.clone(), *rotary), apply_rotary(k.clone(), *rotary)
        keys, values = (cache.float().flatten(0, 1) for cache in (self.keys, self.values))
        keys[c.slots], values[c.slots] = k, v
        rows = []
        for row, length in enumerate(c.context_lens.tolist()):
            blocks = c.block_tables[row].long()
            k_row, v_row = (
                x.view(self.keys.shape)[blocks].flatten(0, 1)[:length].transpose(0, 1) for x in (keys, values)
            )
            attended = F.scaled_dot_product_attention(
                q[row].unsqueeze(1), k_row, v_row, scale=self.scale, enable_gqa=True
            )
            rows.append(attended.squeeze(1))
        return torch.stack(rows), keys.view(self.keys.shape), values.view(self.values.shape)


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
    case = AttentionCase(device, lens, group, head_dim, block_size, normed)
    expected, keys, values = case.reference()
    out = case.run(tile)
    assert_near(out, expected)
    assert torch.equal(case.values.float(), values)
    assert_near(case.keys, keys, 2e-3 if device.type == "cpu" else 1e-2)


def test_a_row_without_context_yields_finite_values(device: torch.device) -> None:
    """Padding rows of a captured graph have length 0 and write to a spare slot."""
    for tile in ATTENTION_TILES:
        case = AttentionCase(device, [1], 2, 64, 16, normed=True)
        case.context.context_lens.zero_()
        assert case.run(tile).isfinite().all()


def test_o_projection_that_combines_splits(device: torch.device) -> None:
    case = AttentionCase(device, [60], 2, 64, 16, normed=True)
    expected, _, _ = case.reference()
    partials = case.partials(4)
    out = random(device, 1, case.heads * case.head_dim)
    tile = AttentionTile("single_tile", block_keys=16, splits=4)
    fused_decode_attention(
        case.qkv, case.keys, case.values, case.context, case.norms, out, *partials, tile, case.scale
    )
    weight, residual = random(device, 20, out.shape[1]), torch.randn(1, 20, device=device)
    before = residual.clone()
    split_combine_gemv(*partials, weight, residual, LinearTile("gemv", 8, 0, 4, "early"))
    assert_near(residual - before, expected.view(1, -1) @ weight.float().T, 5e-3)
