"""Times of tile candidates, Triton against flash-attn, for decodes and for prompt chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from benchmarks.kernels.attention.checks import flash_version
from benchmarks.kernels.attention.measure import Report, graph_us
from benchmarks.kernels.attention.problem import DEVICE, Problem, layers_for, shape_of
from kernels.attention.flash_backend import FlashAttention
from kernels.attention.flash_versions import PagedQueries
from kernels.attention.interface import AttentionShape
from kernels.attention.tuning import num_multiprocessors
from kernels.triton.attention_decode import DecodeConfig
from kernels.triton.attention_prefill import PrefillConfig
from kernels.triton.paged_cache import write_paged_kv

# (keys, warps, stages); (rows, keys, warps, stages)
DECODE_TILES = [
    (64, 4, 3), (64, 4, 5), (64, 4, 7), (32, 4, 5), (128, 4, 2), (128, 4, 5), (128, 8, 5), (64, 2, 5),
]  # fmt: skip
PREFILL_TILES = [
    (128, 64, 8, 3), (128, 64, 8, 5), (128, 128, 8, 2), (128, 128, 8, 3), (64, 64, 4, 3), (64, 128, 4, 3),
]  # fmt: skip


def decode_candidates(shape: AttentionShape, rows: int, context: int) -> Iterator[DecodeConfig]:
    pairs, sms = rows * shape.num_kv_heads, num_multiprocessors(DEVICE)
    for keys, warps, stages in DECODE_TILES:
        tiles = -(-context // keys)
        splits = {max(1, min(tiles, 64, per_sm * sms // pairs)) for per_sm in (1, 2, 4, 8)}
        for num_splits in sorted(splits):
            yield DecodeConfig(keys, warps, stages, num_splits)


def time_decode(report: Report, problem: Problem, case: str, name: str, config: DecodeConfig) -> float | None:
    """Checks layer 0 as well; None if the kernel is wrong."""
    backend: Any = problem.backend
    backend.tuning = FixedDecode(config)
    plan = backend.plan_decode(problem.decode_batch())
    out = backend.forward(plan, 0, problem.q, problem.k, problem.v)
    if not report.compare(f"decode {case} {name}", out, problem.expected):
        return None
    q, k, v = problem.q, problem.k, problem.v
    us = graph_us(lambda layer: backend.forward(plan, layer, q, k, v), problem.shape.num_layers)
    report.reading("decode", case, name, us, problem)
    return us


class FixedDecode:
    """Stands for the tuning of a backend: one configuration for every decode."""

    def __init__(self, config: DecodeConfig) -> None:
        self.config = config

    def decode_config(self, *unused: Any) -> DecodeConfig:
        return self.config


def config_name(config: DecodeConfig) -> str:
    c = config
    tile = f"keys {c.block_keys} warps {c.num_warps} stages {c.num_stages}"
    return f"triton {tile} splits {c.num_splits} {c.trigger}"


def decode_problem(heads: tuple[int, int], rows: int, context: int) -> Problem:
    lens = [(1, context - i % 60) for i in range(rows)]
    base = shape_of(heads)
    return Problem(replace(base, num_layers=layers_for(base, lens)), lens)


def sweep_decode(report: Report, heads: tuple[int, int], rows: int, context: int) -> dict[str, Any]:
    """Times of all candidates; then the triggers of programmatic dependent launch for the best three."""
    case = f"{heads[0]}/{heads[1]} {rows} x {context}"
    problem = decode_problem(heads, rows, context)
    times: dict[DecodeConfig, float] = {}

    def measure(config: DecodeConfig) -> None:
        name = config_name(config)
        us = report.attempt(f"decode {case} {name}", lambda: time_decode(report, problem, case, name, config))
        if us is not None:
            times[config] = us

    for config in decode_candidates(problem.shape, rows, context):
        measure(config)
    for config in sorted(times, key=lambda c: times[c])[:3]:
        for trigger in ("early", "late"):
            measure(replace(config, trigger=trigger))
    best = min(times, key=lambda c: times[c])
    print(f"BEST     {case:24} {config_name(best):48} {times[best]:9.2f} us", flush=True)
    if context <= 4096 and rows >= 64:  # what a graph for any length costs where every context is short
        far = replace(best, num_splits=3, min_split_tiles=16384 // best.block_keys)
        report.attempt(
            "decode", partial(time_decode, report, problem, case, f"{config_name(far)} unused", far)
        )
    report.attempt(f"flash decode {case}", partial(time_flash_decode, report, problem, case))
    return {"heads": heads, "rows": rows, "context": context, "us": times[best], "config": asdict(best)}


def time_flash_decode(report: Report, problem: Problem, case: str) -> None:
    version = flash_version(problem.shape)
    if version is None or len(problem.lens) < 4:
        return
    batch = problem.decode_batch()
    attend = version.prepare(
        PagedQueries(batch.block_tables, batch.context_lens, None, 1, batch.max_context), problem.shape
    )
    caches, out = problem.backend.caches, torch.empty(problem.q.shape, dtype=problem.q.dtype, device=DEVICE)

    def layer_of(layer: int) -> None:
        write_paged_kv(*caches[layer], problem.k, problem.v, batch.slots)
        attend(problem.q, *caches[layer], out)

    layer_of(0)
    if report.compare(f"decode {case} {version.name}", out.flatten(1), problem.expected):
        us = graph_us(layer_of, problem.shape.num_layers)
        report.reading("decode", case, f"{version.name} and KV write", us, problem)


def sweep_prefill(report: Report, heads: tuple[int, int], lens: list[tuple[int, int]]) -> dict[str, Any]:
    case = f"{heads[0]}/{heads[1]} {len(lens)} x {lens[0][0]} on {lens[0][1]}"
    base = shape_of(heads)
    problem = Problem(replace(base, num_layers=min(8, layers_for(base, lens))), lens)
    backend, layers = problem.backend, problem.shape.num_layers
    q, k, v = problem.q, problem.k, problem.v
    times: dict[str, float] = {}

    def measure(kernel: str, backend: Any) -> None:
        plan = backend.plan(problem.batch())
        out = backend.forward(plan, 0, q, k, v)
        if report.compare(f"prefill {case} {kernel}", out, problem.expected):
            times[kernel] = graph_us(lambda layer: backend.forward(plan, layer, q, k, v), layers, replays=3)
            report.reading("prefill", case, kernel, times[kernel], problem)

    for tile in PREFILL_TILES:
        backend.prefill_config = PrefillConfig(*tile)
        report.attempt(f"prefill {case} {tile}", partial(measure, f"triton {tile}", backend))
    version = flash_version(problem.shape)
    if version is not None:
        flash = FlashAttention(problem.shape, version)
        flash.caches = backend.caches
        report.attempt(f"prefill {case} flash", partial(measure, version.name, flash))
    return {"heads": heads, "lens": lens[0], "chunks": len(lens), "us": times}
