"""Microseconds of each kernel, with its own tiles and with those of a sweep, and of plain torch."""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.kernels.elementwise.operands import (
    BF16,
    CUDA,
    EPS,
    HEAD_DIM,
    MIXES,
    SHAPES,
    copies,
    plain_torch,
    randn,
    sampling_inputs,
)
from benchmarks.kernels.elementwise.report import Report
from kernels import activation, norm, rotary, sampling
from kernels.triton.qk_norm_rotary import qk_norm_rotary
from kernels.triton.restrict import thresholds
from kernels.triton.rms_norm import add_rms_norm
from kernels.triton.sample import sample
from kernels.triton.silu_and_mul import silu_and_mul

SWEPT_TOKENS = (1, 256, 8192)


def time_norms(report: Report, shape: str, num_tokens: int) -> None:
    hidden, _, _ = SHAPES[shape]
    num_bytes = 4 * num_tokens * hidden * 2
    weight = randn(hidden)
    sets = [(randn(num_tokens, hidden), randn(num_tokens, hidden)) for _ in range(copies(num_bytes))]
    name = f"{shape} T={num_tokens}"
    tiles: list[dict[str, int]] = [{}]
    if num_tokens in SWEPT_TOKENS:
        tiles += [{"num_warps": num_warps} for num_warps in (1, 2, 4, 8, 16)]
    for tile in tiles:
        launches = [partial(add_rms_norm, *xs, weight, EPS, **tile) for xs in sets]  # type: ignore[arg-type]
        report.timed(f"add_rms_norm {name}", launches, num_bytes, **tile)
    with plain_torch():
        launches = [partial(norm.add_rms_norm, *xs, weight, EPS) for xs in sets]
        report.timed(f"  plain torch {name}", launches, num_bytes)


def time_silu(report: Report, shape: str, num_tokens: int) -> None:
    _, intermediate, _ = SHAPES[shape]
    num_bytes = 3 * num_tokens * intermediate * 2
    sets = [randn(num_tokens, 2 * intermediate) for _ in range(copies(num_bytes))]
    name = f"{shape} T={num_tokens}"
    tiles: list[dict[str, int]] = [{}]
    if num_tokens in SWEPT_TOKENS:
        sizes = ((512, 2), (1024, 2), (1024, 8), (2048, 4), (2048, 8))
        tiles += [{"block": block, "num_warps": num_warps} for block, num_warps in sizes]
    for tile in tiles:
        launches = [partial(silu_and_mul, x, **tile) for x in sets]
        report.timed(f"silu_and_mul {name}", launches, num_bytes, **tile)
    with plain_torch():
        launches = [partial(activation.silu_and_mul, x) for x in sets]
        report.timed(f"  plain torch {name}", launches, num_bytes)


def time_rotary(report: Report, shape: str, num_tokens: int) -> None:
    _, _, heads = SHAPES[shape]
    num_bytes = 2 * num_tokens * (heads[0] + heads[1]) * HEAD_DIM * 2
    sets = [randn(num_tokens, sum(heads), HEAD_DIM) for _ in range(copies(num_bytes))]
    table = torch.rand(40_960, HEAD_DIM, device=CUDA)
    positions = torch.randint(0, len(table), (num_tokens,), device=CUDA)
    gathers = [partial(rotary.rotary_rows, table, positions, BF16)] * 8
    rows = rotary.rotary_rows(table, positions, BF16)
    arguments = (heads, (randn(HEAD_DIM), randn(HEAD_DIM)), EPS, *rows)
    name = f"{shape} T={num_tokens}"
    tiles: list[dict[str, int]] = [{}]
    if num_tokens in SWEPT_TOKENS:
        sizes = ((1, 1), (2, 1), (4, 1), (4, 4), (8, 2), (8, 4), (16, 4))
        tiles += [{"heads_block": heads_block, "num_warps": num_warps} for heads_block, num_warps in sizes]
    for tile in tiles:
        launches = [partial(qk_norm_rotary, x, *arguments, **tile) for x in sets]
        report.timed(f"qk_norm_rotary {name}", launches, num_bytes, **tile)
    report.timed(f"rotary_rows {name}", gathers, num_tokens * HEAD_DIM * 8)
    with plain_torch():
        launches = [partial(rotary.norm_and_rotate, x, *arguments) for x in sets]
        report.timed(f"  plain torch {name}", launches, num_bytes)
        report.timed(f"  plain torch rotary_rows {name}", gathers, num_tokens * HEAD_DIM * 8)


def time_sampling(report: Report, num_rows: int) -> None:
    for mix in MIXES:
        logits, *keys, top_k, top_p, min_p = sampling_inputs(num_rows, mix)
        sets = [logits.clone() for _ in range(copies(logits.nbytes))]
        restriction = sampling.Restriction(top_k, top_p, min_p) if "top" in mix else None
        launches = [partial(sampling.sample_tokens, x, *keys, restriction) for x in sets]
        report.timed(f"sample {mix} M={num_rows}", launches, logits.nbytes)
        if restriction is None:  # the other rows are sorted, which no graph is known to hold
            with plain_torch():
                report.timed(f"  plain torch {mix} M={num_rows}", launches[:2], logits.nbytes)


def sweep_sampling(report: Report, num_rows: int) -> None:
    for mix in ("greedy", "temperature"):
        logits, *keys, _, _, _ = sampling_inputs(num_rows, mix)
        sets = [logits.clone() for _ in range(copies(logits.nbytes))]
        for block, num_warps in ((512, 4), (1024, 4), (1024, 8), (2048, 4), (2048, 8), (4096, 8)):
            for max_programs in (256, 512, 1024, 2048):
                tile = {"block": block, "num_warps": num_warps, "max_programs": max_programs}
                launches = [partial(sample, x, *keys, **tile) for x in sets]
                name = f"sample {mix} M={num_rows}"
                report.attempt(name, partial(report.timed, name, launches, logits.nbytes, **tile))


def sweep_restrict(report: Report, num_rows: int) -> None:
    logits, temperature, _, _, *limits = sampling_inputs(num_rows, "top-k and top-p")
    sets = [logits.clone() for _ in range(copies(logits.nbytes))]
    tiles: list[dict[str, int]] = [{}]
    for block, num_warps, max_programs in ((1024, 8, 512), (1024, 8, 2048), (512, 4, 1024), (1024, 4, 1024)):
        tiles.append({"block": block, "num_warps": num_warps, "max_programs": max_programs})
    for tile in tiles:
        launches = [partial(thresholds, x, temperature, *limits, **tile) for x in sets]
        name = f"thresholds M={num_rows}"
        report.attempt(name, partial(report.timed, name, launches, logits.nbytes, **tile))
