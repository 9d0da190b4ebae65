"""Norm, activation, rotary and sampling kernels on a GPU: checked, timed against their bytes, tiles swept.

    python -m benchmarks.kernels.elementwise [OUT_DIR] [--seconds 85]

Prints a line for each check (FAIL where one fails), then microseconds in a CUDA-graph replay beside the time
that the bytes alone take and that of the same step in plain torch. Writes elementwise.json to OUT_DIR.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels.small_batch.timing import capture, replay_us
from kernels import activation, fused, norm, rotary, sampling
from kernels.triton.qk_norm_rotary import qk_norm_rotary
from kernels.triton.restrict import thresholds
from kernels.triton.rms_norm import add_rms_norm
from kernels.triton.sample import sample
from kernels.triton.silu_and_mul import silu_and_mul

CUDA = torch.device("cuda")
BF16 = torch.bfloat16
EPS = 1e-6
TERABYTES_PER_S = 4.6  # what an H200's memory gives at best
L2_BYTES = 50 << 20
VOCAB = 151_936
HEAD_DIM = 128
SHAPES = {"0.6B": (1024, 3072, (16, 8, 8)), "8B": (4096, 12288, (32, 8, 8))}  # hidden, intermediate, heads
NUM_TOKENS = (1, 16, 64, 256, 1024, 8192)
SWEPT_TOKENS = (1, 256, 8192)
NUM_ROWS = (1, 16, 256)
MIXES = {  # temperature, top_k, top_p of every row
    "greedy": (0.0, 0, 1.0),
    "temperature": (0.8, 0, 1.0),
    "top-p": (0.8, 0, 0.95),
    "top-k and top-p": (0.6, 20, 0.95),
}


@contextmanager
def plain_torch() -> Iterator[None]:
    """The functions of `kernels` without their Triton kernels."""
    has_triton = fused._has_triton
    fused._has_triton = lambda: False  # type: ignore[assignment]
    try:
        yield
    finally:
        fused._has_triton = has_triton


class Report:
    def __init__(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        self.failures = 0
        self.timings: list[dict[str, Any]] = []

    def attempt(self, name: str, part: Callable[[], object]) -> None:
        """One part that fails or does not compile must not end the run."""
        if time.monotonic() > self.deadline:
            print(f"SKIP {name}: out of time")
            return
        try:
            part()
        except Exception:
            self.failures += 1
            print(f"FAIL {name}: {traceback.format_exc(limit=-2)}")

    def check(self, name: str, actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-2) -> None:
        expected = expected.float()
        error = ((actual.float() - expected).norm() / expected.norm().clamp(min=1e-20)).item()
        self.verdict(name, error < tolerance, f"relative error {error:.1e}")

    def verdict(self, name: str, is_good: bool, detail: str) -> None:
        self.failures += not is_good
        print(f"{'ok  ' if is_good else 'FAIL'} {name}: {detail}")

    def timed(self, name: str, launches: list[Callable[[], object]], num_bytes: int, **tile: Any) -> float:
        def all_of_them() -> None:
            for launch in launches:
                launch()

        us = replay_us(capture(all_of_them), readings=5, least_ms=2.0) / len(launches)
        floor = num_bytes / TERABYTES_PER_S / 1e6
        print(f"     {name:46s} {us:9.2f} us, bytes alone {floor:8.2f}  {tile or ''}", flush=True)
        self.timings.append({"name": name, "us": us, "floor_us": floor, "tile": tile})
        return us


def copies(num_bytes: int) -> int:
    """How many sets of operands to go round, so that together they exceed the L2 (32 at most)."""
    return max(2, min(32, 2 * L2_BYTES // num_bytes))


def randn(*size: int) -> torch.Tensor:
    return torch.randn(*size, device=CUDA, dtype=BF16)


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
    qkv, slots = randn(num_tokens, sum(heads), HEAD_DIM), torch.randperm(2 * num_tokens, device=CUDA)
    weights = randn(HEAD_DIM), randn(HEAD_DIM)
    with plain_torch():
        cos, sin = rotary.rotary_rows(table, positions, torch.float32)
        exact = tuple(weight.float() for weight in weights)
        q, k, v = rotary.norm_and_rotate(qkv.float(), heads, (exact[0], exact[1]), EPS, cos, sin)
    keys, values = (torch.zeros(2 * num_tokens, heads[1], HEAD_DIM, device=CUDA, dtype=BF16) for _ in "kv")
    slots = slots[:num_tokens]
    rows = rotary.rotary_rows(table, positions, BF16)
    qk_norm_rotary(qkv, heads, weights, EPS, *rows, caches=(keys, values), slots=slots)
    report.check(f"q {name}", qkv[:, : heads[0]], q)
    report.check(f"keys {name}", keys[slots], k)
    report.check(f"values {name}", values[slots], v)


def sampling_inputs(num_rows: int, mix: str, scale: float = 2.5) -> tuple[torch.Tensor, ...]:
    """logits, temperature, seeds, positions, and the restriction's three."""
    temperature, top_k, top_p = MIXES[mix]
    logits = (torch.randn(num_rows, VOCAB, device=CUDA) * scale).bfloat16().float()
    seeds = torch.randint(-(2**62), 2**62, (num_rows,), device=CUDA)
    return (
        logits,
        torch.full((num_rows,), temperature, device=CUDA),
        seeds,
        torch.arange(num_rows, device=CUDA) * 31,
        torch.full((num_rows,), top_k, device=CUDA),
        torch.full((num_rows,), top_p, device=CUDA),
        torch.zeros(num_rows, device=CUDA),
    )


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
    num_bytes = 2 * num_tokens * sum(heads) * HEAD_DIM * 2
    sets = [randn(num_tokens, sum(heads), HEAD_DIM) for _ in range(copies(num_bytes))]
    table = torch.rand(40_960, HEAD_DIM, device=CUDA)
    positions = torch.randint(0, len(table), (num_tokens,), device=CUDA)
    gathers = [partial(rotary.rotary_rows, table, positions, BF16)] * 8
    rows = rotary.rotary_rows(table, positions, BF16)
    arguments = (heads, (randn(HEAD_DIM), randn(HEAD_DIM)), EPS, *rows)
    caches = [torch.zeros(num_tokens, heads[1], HEAD_DIM, device=CUDA, dtype=BF16) for _ in "kv"]
    slots = torch.randperm(num_tokens, device=CUDA)
    name = f"{shape} T={num_tokens}"
    tiles: list[dict[str, int]] = [{}]
    if num_tokens in SWEPT_TOKENS:
        sizes = ((1, 1), (2, 1), (4, 1), (4, 4), (8, 2), (8, 4), (16, 4))
        tiles += [{"heads_block": heads_block, "num_warps": num_warps} for heads_block, num_warps in sizes]
    for tile in tiles:
        launches = [partial(qk_norm_rotary, x, *arguments, caches=caches, slots=slots, **tile) for x in sets]
        report.timed(f"qk_norm_rotary, KV write {name}", launches, num_bytes, **tile)
    report.timed(f"rotary_rows {name}", gathers, num_tokens * HEAD_DIM * 8)
    with plain_torch():
        launches = [partial(rotary.norm_and_rotate, x, *arguments) for x in sets]
        report.timed(f"  plain torch, no KV write {name}", launches, num_bytes)
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


def run(report: Report) -> None:
    for shape in SHAPES:
        for num_tokens in (1, 16, 333):
            report.attempt(f"check {shape}", partial(check_elementwise, report, shape, num_tokens))
    for mix in MIXES:
        report.attempt(f"check {mix}", partial(check_sampling, report, mix))
    for num_rows in NUM_ROWS:
        report.attempt("sampling", partial(time_sampling, report, num_rows))
    for part in (time_norms, time_silu, time_rotary):
        for shape in SHAPES:
            for num_tokens in NUM_TOKENS:
                report.attempt(
                    f"{part.__name__} {shape} {num_tokens}", partial(part, report, shape, num_tokens)
                )
    for sweep in (sweep_sampling, sweep_restrict):
        for num_rows in NUM_ROWS:
            report.attempt(sweep.__name__, partial(sweep, report, num_rows))


def best_tiles(timings: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The fastest tile of each swept name, beside the default's time."""
    best: dict[str, dict[str, Any]] = {}
    for entry in timings:
        name = entry["name"]
        swept = best.setdefault(name, {"us": float("inf"), "tile": {}, "default_us": None})
        if not entry["tile"]:
            swept["default_us"] = entry["us"]
        if entry["us"] < swept["us"]:
            swept.update(us=entry["us"], tile=entry["tile"])
    return {name: swept for name, swept in best.items() if not name.startswith("  ")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", nargs="?", default="out", type=Path)
    parser.add_argument("--seconds", type=float, default=85.0)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    report = Report(arguments.seconds)
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    with torch.inference_mode():
        run(report)
    best = best_tiles(report.timings)
    for name, entry in best.items():
        if entry["tile"]:
            print(f"best {name}: {entry['us']:.2f} us (default {entry['default_us']}) {entry['tile']}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    result = {"device": torch.cuda.get_device_name(), "best": best, "timings": report.timings}
    (arguments.out / "elementwise.json").write_text(json.dumps(result, indent=1))
    print(f"{report.failures} failures")
    return min(report.failures, 1)


if __name__ == "__main__":
    sys.exit(main())
