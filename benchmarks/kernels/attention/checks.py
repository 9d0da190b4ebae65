"""Correctness beyond the timed shapes, and the host's share of a call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.kernels.attention.measure import Report
from benchmarks.kernels.attention.problem import Problem, shape_of
from kernels.attention.flash_backend import FlashAttention
from kernels.attention.flash_versions import FlashVersion, find_flash_attn
from kernels.attention.interface import AttentionShape


def flash_version(shape: AttentionShape) -> FlashVersion | None:
    try:
        return find_flash_attn(shape)
    except ValueError:
        return None


def check_jobs(report: Report) -> list[Callable[[], Any]]:
    """Shapes, block sizes and windows beyond those that are timed, in mixed steps, by both backends."""
    lens = [(1, 1), (1, 700), (1, 129), (1, 3000), (130, 130), (77, 1000), (1024, 2049), (17, 17)]
    shapes = [
        shape_of((32, 8)),
        shape_of((16, 8), block_size=16),
        shape_of((14, 2), 64, block_size=64),
        shape_of((8, 1), 256),
        shape_of((9, 3), 80, block_size=16),
        shape_of((32, 8), sliding_window=300),
        shape_of((8, 8), dtype=torch.float16),
    ]
    jobs: list[Callable[[], Any]] = []
    for shape in shapes:
        name = f"check {shape.num_heads}/{shape.num_kv_heads} d{shape.head_dim} block {shape.block_size}"
        name += f" window {shape.sliding_window} {shape.dtype}"
        jobs += [partial(check_backend, report, shape, lens, name, flash) for flash in (True, False)]
    return jobs


def check_backend(
    report: Report, shape: AttentionShape, lens: list[tuple[int, int]], name: str, flash: bool
) -> None:
    problem = Problem(shape, lens, poison=not flash)
    backend: Any = problem.backend
    if flash:
        try:
            backend = FlashAttention(shape)
        except ValueError as error:
            print(f"skip {name} flash: {error}", flush=True)
            return
        backend.caches = problem.backend.caches
        backend.tuning = replace(backend.tuning, flash_decode_pairs=0)
    plan = backend.plan(problem.batch())
    for again in range(2):  # the second call takes the prepared way
        out = backend.forward(plan, 0, problem.q, problem.k, problem.v)
        report.compare(f"{name} {backend.name} mixed {again}", out, problem.expected)
    keys = backend.caches[0].keys.view(-1, shape.num_kv_heads, shape.head_dim)
    report.compare(f"{name} {backend.name} write", keys[problem.slots], problem.k.float(), 1e-6)


def plan_and_run(backend: Any, problem: Problem) -> torch.Tensor:
    out: torch.Tensor = backend.forward(backend.plan(problem.batch()), 0, problem.q, problem.k, problem.v)
    return out


def host_times() -> dict[str, float]:
    """Microseconds of the host for one eager call, the device idle: plan, and forward of one layer."""
    problem = Problem(shape_of((16, 8)), [(1, 128)] * 4 + [(128, 128)])
    result = {}
    backends: list[Any] = [problem.backend]
    version = flash_version(problem.shape)
    if version is not None:
        backends.append(FlashAttention(problem.shape, version))
        backends[-1].caches = problem.backend.caches
    for backend in backends:
        plan = backend.plan(problem.batch())
        calls: dict[str, Callable[[], Any]] = {
            "plan": partial(backend.plan, problem.batch()),
            "forward": partial(backend.forward, plan, 0, problem.q, problem.k, problem.v),
            "plan and forward": partial(plan_and_run, backend, problem),
        }
        for name, call in calls.items():
            for _ in range(20):
                call()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(100):
                call()
            us = (time.perf_counter() - begin) * 1e4
            torch.cuda.synchronize()
            result[f"{backend.name} {name}"] = us
            print(f"host     {backend.name:8} {name:28} {us:8.1f} us a call", flush=True)
    return result
