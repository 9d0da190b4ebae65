"""The kernels' results beside those of plain torch."""

from __future__ import annotations

import torch

from benchmarks.kernels.elementwise.operands import (
    BF16,
    CUDA,
    EPS,
    HEAD_DIM,
    SHAPES,
    VOCAB,
    plain_torch,
    randn,
    sampling_inputs,
)
from benchmarks.kernels.elementwise.report import Report
from kernels import activation, norm, rotary, sampling
from kernels.triton.rms_norm import add_rms_norm


def check_elementwise(report: Report, shape: str, num_tokens: int) -> None:
    hidden, intermediate, heads = SHAPES[shape]
    name = f"{shape} T={num_tokens}"
    x, residual, weight = randn(num_tokens, hidden), randn(num_tokens, hidden), randn(hidden)
    with plain_torch():
        total = (x.float() + residual.float()).to(BF16).float()
        expected = norm.rms_norm(total, weight.float(), EPS)
    normed, summed = add_rms_norm(x, residual, weight, EPS)
    report.check(f"add_rms_norm {name}", normed, expected)
    report.check(f"residual {name}", summed, total)
    report.check(f"rms_norm {name}", norm.rms_norm(summed, weight, EPS), expected)
    gate_up = randn(num_tokens, 2 * intermediate)
    with plain_torch():
        expected = activation.silu_and_mul(gate_up.float())
    report.check(f"silu_and_mul {name}", activation.silu_and_mul(gate_up), expected)
    check_rotary(report, name, heads, num_tokens)


def check_rotary(report: Report, name: str, heads: tuple[int, int, int], num_tokens: int) -> None:
    angles = torch.rand(40_960, HEAD_DIM // 2, device=CUDA) * 1000
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.randint(0, len(table), (num_tokens,), device=CUDA)
    qkv = randn(num_tokens, sum(heads), HEAD_DIM)
    weights = randn(HEAD_DIM), randn(HEAD_DIM)
    with plain_torch():
        cos, sin = rotary.rotary_rows(table, positions, torch.float32)
        exact = tuple(weight.float() for weight in weights)
        expected = rotary.norm_and_rotate(qkv.float(), heads, (exact[0], exact[1]), EPS, cos, sin)
    rows = rotary.rotary_rows(table, positions, BF16)
    actual = rotary.norm_and_rotate(qkv, heads, weights, EPS, *rows)
    for part, ours, theirs in zip("qkv", actual, expected, strict=True):
        report.check(f"{part} {name}", ours, theirs)


def check_sampling(report: Report, mix: str) -> None:
    for scale in (0.5, 2.5):
        logits, temperature, seeds, positions, *limits = sampling_inputs(64, mix, scale)
        restriction = sampling.Restriction(*limits)
        drawn = sampling.sample_tokens(logits, temperature, seeds, positions, restriction)
        with plain_torch():
            expected = sampling.sample_tokens(logits, temperature, seeds, positions, restriction)
        differing = int((drawn != expected).sum())
        report.verdict(f"sample {mix}, scale {scale}", differing <= 1, f"{differing} of 64 draws differ")
    on_cpu = sampling.gumbel_noise(seeds[:4].cpu(), positions[:4].cpu(), VOCAB)
    report.check(
        "noise of CPU and GPU", sampling.gumbel_noise(seeds[:4], positions[:4], VOCAB).cpu(), on_cpu, 1e-6
    )
