"""Every kernel and tile against fp32 torch on fresh random inputs. A share of them in each process: most of
the time goes to compiling, which this does for the timings that follow too (Triton keeps it on disk)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from benchmarks.kernels.small_batch.cases import (
    BLOCK_SIZE,
    KINDS,
    MODELS,
    attention_candidates,
    linear_candidates,
    product_shape,
)
from kernels.activation import silu_and_mul
from kernels.norm import rms_norm
from kernels.triton.small_batch.epilogue import Epilogue
from kernels.triton.small_batch.gemv import gemv
from kernels.triton.small_batch.residual_norm import residual_norm
from kernels.triton.small_batch.skinny_gemm import skinny_gemm
from kernels.triton.small_batch.split_combine_gemv import split_combine_gemv
from kernels.triton.small_batch.tiles import AttentionTile, LinearTile, StepTiles, step_tiles
from model.config import ModelConfig
from model.small_batch import step_shape
from tests.support.decode_attention import AttentionCase

Check = Callable[[], float]
"""Runs one kernel and returns its relative error."""

BOUND = 1e-2
CUDA = torch.device("cuda")
EPS = 1e-6
EPILOGUES = {"qkv": Epilogue.STORE, "o": Epilogue.ADD, "gate_up": Epilogue.SILU_AND_MUL, "down": Epilogue.ADD}


def run_share(index: int, count: int, models: list[str], batches: list[int], contexts: list[int]) -> None:
    """Prints a FAIL line for each kernel that is wrong or does not run, and how many passed."""
    torch.manual_seed(1000 + index)
    passed = 0
    for position, (name, check) in enumerate(all_checks(models, batches, contexts)):
        if position % count != index:
            continue
        try:
            error = check()
        except Exception as problem:  # a tile that does not compile must not end the run
            print(f"FAIL {name}: {type(problem).__name__}: {str(problem)[:200]!r}", flush=True)
            continue
        if error < BOUND:
            passed += 1
        else:
            print(f"FAIL {name}: relative error {error:.1e}", flush=True)
    print(f"checked: {passed} passed in share {index}", flush=True)


def all_checks(models: list[str], batches: list[int], contexts: list[int]) -> Iterator[tuple[str, Check]]:
    """(name, check) of every product and attention tile that is measured or chosen."""
    for model in models:
        config = MODELS[model]
        for kind, num_rows, tile in _products(model, config, batches):
            name = f"{model} {kind} rows {num_rows} {tile}"
            yield name, partial(product_error, config, kind, num_rows, tile)
        for num_rows, max_context, attention in _attentions(config, batches, contexts):
            name = f"{model} attention {num_rows} x {max_context} {attention}"
            yield name, partial(attention_error, config, num_rows, max_context, attention)


def _chosen(config: ModelConfig, num_rows: int, max_context: int) -> StepTiles:
    return step_tiles(torch.cuda.get_device_name(CUDA), step_shape(config), num_rows, max_context)


def _products(model: str, config: ModelConfig, batches: list[int]) -> list[tuple[str, int, LinearTile]]:
    """Each kernel once for its count of rows: 1 or 2 by gemv, else one of those padded to one kernel."""
    products: dict[tuple[str, int, LinearTile], None] = {}
    for kind in KINDS:
        for num_rows in batches:
            tiles = [*linear_candidates(model, kind, num_rows), getattr(_chosen(config, num_rows, 512), kind)]
            for tile in tiles:
                full = num_rows if num_rows > 16 else 16 if tile.block_n >= 64 else 8
                some = (max(3, full - 13), full)
                rows = num_rows if tile.kernel == "gemv" else some[len(products) % 2]
                if tile.kernel == "gemv" or not any((kind, r, tile) in products for r in some):
                    products[kind, rows, tile] = None
                if tile.splits > 1 and num_rows <= 16:
                    products[kind, full, replace(tile, reduce="atomic")] = None
    return list(products)


def _attentions(
    config: ModelConfig, batches: list[int], contexts: list[int]
) -> list[tuple[int, int, AttentionTile]]:
    seen: dict[AttentionTile, tuple[int, int]] = {}
    for num_rows in batches:
        for max_context in contexts:
            tiles = attention_candidates(num_rows, max_context)
            for tile in [*tiles, _chosen(config, num_rows, max_context).attention]:
                seen.setdefault(tile, (num_rows, max_context))
    return [(num_rows, max_context, tile) for tile, (num_rows, max_context) in seen.items()]


def relative_error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    """The worst row's; NaN, which compares false with any bound, where anything is not finite."""
    errors = (ours.float() - exact).norm(dim=-1) / exact.norm(dim=-1)
    return float(errors.max()) if bool(errors.isfinite().all()) else float("nan")


def product_error(config: ModelConfig, kind: str, num_rows: int, tile: LinearTile) -> float:
    """Of a product as the step calls it, norm and epilogue included, against fp32."""
    n, k = product_shape(config, kind)
    epilogue = EPILOGUES.get(kind, Epilogue.STORE)
    weight_rows = 2 * n if epilogue is Epilogue.SILU_AND_MUL else n
    weight = torch.randn(weight_rows, k, device=CUDA, dtype=torch.bfloat16).mul_(k**-0.5)
    if epilogue is Epilogue.ADD:
        return _residual_error(weight, num_rows, tile)
    residual = torch.randn(num_rows, k, device=CUDA) * 3
    norm_weight = torch.rand(k, device=CUDA, dtype=torch.bfloat16) + 0.5
    out_type = torch.float32 if kind == "lm_head" else torch.bfloat16
    out = torch.full((num_rows, n), float("nan"), device=CUDA, dtype=out_type)
    if tile.kernel == "gemv":
        gemv(residual, weight, out, tile, epilogue, norm_weight=norm_weight, eps=EPS)
        normed = rms_norm(residual, norm_weight.float(), EPS)
        # Compiled without the norm as well, for the steps that need that.
        gemv(normed.bfloat16(), weight, torch.empty_like(out), tile, epilogue)
    else:
        x = torch.empty(num_rows, k, device=CUDA, dtype=torch.bfloat16)
        residual_norm(residual, norm_weight, x, EPS)
        normed = x.float()
        skinny_gemm(x, weight, out, tile, epilogue)
        if not relative_error(x, rms_norm(residual, norm_weight.float(), EPS)) < BOUND:
            raise ArithmeticError("residual_norm is wrong")
    exact = normed @ weight.float().T
    return relative_error(out, silu_and_mul(exact) if epilogue is Epilogue.SILU_AND_MUL else exact)


def _residual_error(weight: torch.Tensor, num_rows: int, tile: LinearTile) -> float:
    n, k = weight.shape
    x = torch.randn(num_rows, k, device=CUDA, dtype=torch.bfloat16)
    residual = torch.randn(num_rows, n, device=CUDA)
    exact = residual + x.float() @ weight.float().T
    if tile.kernel == "gemv":
        gemv(x, weight, residual, tile, Epilogue.ADD)
    elif tile.splits > 1 and tile.reduce == "partials":
        partials = torch.full((tile.splits, num_rows, n), float("nan"), device=CUDA)
        skinny_gemm(x, weight, residual, tile, Epilogue.ADD, partials=partials)
        normed = torch.empty(num_rows, n, device=CUDA, dtype=torch.bfloat16)
        residual_norm(residual, weight[:, 0].contiguous(), normed, EPS, partials=partials)
    else:
        skinny_gemm(x, weight, residual, tile, Epilogue.ADD)
    return relative_error(residual, exact)


def attention_error(config: ModelConfig, num_rows: int, max_context: int, tile: AttentionTile) -> float:
    """Of attention over contexts of random lengths, the first one full, against fp32."""
    lens = torch.randint(1, max_context + 1, (num_rows,)).tolist()
    lens[0] = max_context
    case = AttentionCase(
        CUDA,
        torch.bfloat16,
        lens,
        kv_heads=config.num_kv_heads,
        group=config.num_heads // config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=BLOCK_SIZE,
        normed=True,
    )
    exact, keys, values = case.reference()
    if tile.combine == "projection":
        return _combined_error(case, tile, exact, config.hidden_size)
    error = relative_error(case.run(tile), exact)
    written = [
        relative_error(c.flatten(2), e.flatten(2)) for c, e in ((case.keys, keys), (case.values, values))
    ]
    return max(error, *written) if all(w == w for w in written) else float("nan")


def _combined_error(case: AttentionCase, tile: AttentionTile, exact: torch.Tensor, n: int) -> float:
    """Through the o projection that combines the splits."""
    q_size = case.heads * case.head_dim
    out = torch.empty(1, q_size, device=CUDA, dtype=torch.bfloat16)
    partials = case.partials(tile.splits)
    case.attend(tile, out, partials)
    weight = torch.randn(n, q_size, device=CUDA, dtype=torch.bfloat16).mul_(q_size**-0.5)
    errors = []
    for block_n in (4, 8):
        residual = torch.zeros(1, n, device=CUDA)
        split_combine_gemv(*partials, weight, residual, LinearTile("gemv", block_n, 0, 8, "early"))
        errors.append(relative_error(residual, exact.view(1, -1) @ weight.float().T))
    return max(errors)
