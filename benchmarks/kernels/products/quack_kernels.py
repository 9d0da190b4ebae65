"""Quack's products on Hopper by tile: plain, or with activation, residual or norm in their epilogue.

Weights are [N, K] as `torch.nn.Linear` keeps them. Nothing here tunes itself: the tile is the caller's.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from kernels.quack_gated import ask_no_driver

os.environ.setdefault("QUACK_ARCH", "90")  # or it asks the device, which processes that compile do not have
os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")


@dataclass(frozen=True, slots=True)
class Tile:
    m: int
    n: int
    cluster_m: int = 2
    cluster_n: int = 1
    pingpong: bool = False
    swizzle: int = 8

    def __str__(self) -> str:
        return f"{self.m}x{self.n}{'p' if self.pingpong else 'c'}{self.cluster_m}{self.cluster_n}"

    @property
    def options(self) -> dict[str, Any]:
        return {
            "tile_M": self.m,
            "tile_N": self.n,
            "cluster_M": self.cluster_m,
            "cluster_N": self.cluster_n,
            "pingpong": self.pingpong,
            "max_swizzle_size": self.swizzle,
        }


TILES = (
    Tile(128, 256),
    Tile(128, 256, 1, 2),
    Tile(256, 128),
    Tile(256, 128, 1, 2),
    Tile(128, 192, 2, 1, pingpong=True),
    Tile(128, 192, 1, 2, pingpong=True),
    Tile(256, 192),
    Tile(256, 160),
    Tile(128, 160, 2, 1, pingpong=True),
    Tile(128, 128, 2, 1, pingpong=True),
    Tile(192, 128, 1, 2, pingpong=True),
    Tile(128, 256, 1, 1),
    Tile(128, 128, 1, 1, pingpong=True),
    Tile(64, 256, 1, 2, pingpong=True),
    Tile(128, 224),
)
PAIRED_TILES = tuple(tile for tile in TILES if tile.n % 32 == 0)  # what a gate and its activation ask for


@cache
def _own_epilogues() -> tuple[Any, Any]:
    from quack.epilogue.frontend import gemm_epilogue
    from quack.epilogue.ops import ColVecLoad

    @gemm_epilogue()
    def add(acc: Any, c: Any) -> Any:
        return {"D": acc + c}

    @gemm_epilogue(ops={"rstd": ColVecLoad("rstd")})
    def scale(acc: Any, rstd: Any) -> Any:
        return {"D": acc * rstd}

    return add, scale


class QuackKernels:
    """Raises an exception of some kind if quack is not there, or cannot be imported."""

    def __init__(self, launch: bool = True) -> None:
        """`launch` is False where a kernel is only to be compiled."""
        from quack.epilogue import library

        self._library = library
        self._add, self._scale = _own_epilogues()
        self._launch = launch

    def plain(self, tile: Tile, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = _empty(x, weight.shape[0])
        self._run(self._library.identity_epi, tile, x, weight, out)
        return out

    def add(self, tile: Tile, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual += x W^T, in place."""
        self._run(self._add, tile, x, weight, residual, residual)
        return residual

    def add_by_store(
        self, tile: Tile, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor
    ) -> torch.Tensor:
        """The same, added by the memory system as it is stored."""
        self._run(self._library.identity_epi, tile, x, weight, residual, add_to_output=True)
        return residual

    def gated(self, tile: Tile, x: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(x G^T) * (x U^T) of the stacked weight [G; U]."""
        out = _empty(x, gate_up.shape[0] // 2)
        epi = {"postact": out[None]}
        self._run(self._library.swiglu_mod, tile, x[None], gate_up[None], None, epi=epi, concat_layout=("B",))
        return out

    def gated_interleaved(self, tile: Tile, x: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
        """The same where rows of G and U take turns in the weight."""
        out = _empty(x, gate_up.shape[0] // 2)
        self._run(self._library.swiglu_mod, tile, x, gate_up, None, epi={"postact": out})
        return out

    def add_scaled(
        self,
        tile: Tile,
        x: torch.Tensor,
        weight: torch.Tensor,
        residual: torch.Tensor,
        norm: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """residual += x W^T; (residual * norm, 1 / rms of the residual's rows)."""
        rows, size = residual.shape
        scaled = torch.empty_like(residual)
        squares = torch.empty(rows, -(-size // tile.n), dtype=torch.float32, device=x.device)
        epi = {"resid_out": residual, "weight": norm[None], "sqsum": squares}
        self._run(self._library.rms_partial_epi, tile, x, weight, scaled, residual, epi=epi)
        if not self._launch:
            return scaled, squares[:, 0]
        from quack.rms_final_reduce import rms_final_reduce

        return scaled, rms_final_reduce(squares, 1 / size, eps)

    def of_scaled(
        self, tile: Tile, x: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        """(x W^T) * rstd, row by row."""
        out = _empty(x, weight.shape[0])
        self._run(self._scale, tile, x, weight, out, epi={"rstd": rstd[None]})
        return out

    def gated_of_scaled(
        self, tile: Tile, x: torch.Tensor, rstd: torch.Tensor, gate_up: torch.Tensor
    ) -> torch.Tensor:
        out = _empty(x, gate_up.shape[0] // 2)
        epi = {"postact": out[None], "rstd": rstd[None]}
        self._run(
            self._library.rstd_swiglu_epi, tile, x[None], gate_up[None], None, epi=epi, concat_layout=("B",)
        )
        return out

    def _run(
        self,
        epilogue: Any,
        tile: Tile,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor | None,
        added: torch.Tensor | None = None,
        epi: dict[str, torch.Tensor] | None = None,
        **options: Any,
    ) -> None:
        epilogue.gemm(
            x, weight, out, added, epi_args=epi or {}, **tile.options, **options, _launch=self._launch
        )


def _empty(x: torch.Tensor, size: int) -> torch.Tensor:
    return torch.empty(x.shape[0], size, dtype=x.dtype, device=x.device)


Job = tuple[str, Tile]
KINDS: dict[str, Sequence[Tile]] = {
    "gated": PAIRED_TILES,
    "plain": TILES,
    "add": TILES[:12],
    "gated_interleaved": PAIRED_TILES[:2],
    "gated_of_scaled": PAIRED_TILES,
    "add_scaled": TILES[:9],
    "of_scaled": TILES[:9],
    "add_by_store": TILES[:4],
}


def jobs() -> list[Job]:
    return [(kind, tile) for kind, tiles in KINDS.items() for tile in tiles]


def compile_job(job: Job) -> tuple[Job, float, str]:
    """(job, seconds, error or nothing), with tensors of no device, in a process that does nothing else."""
    kind, tile = job
    started = time.perf_counter()
    try:
        ask_no_driver()
        _call(QuackKernels(launch=False), kind, tile)
    except Exception as error:
        return job, time.perf_counter() - started, f"{type(error).__name__}: {str(error)[:600]}"
    return job, time.perf_counter() - started, ""


def compile_all(seconds: float) -> Iterator[tuple[Job, float, str]]:
    """In forked processes: to be called before this one touches the device."""
    context = multiprocessing.get_context("fork")
    cores = len(os.sched_getaffinity(0))
    deadline = time.monotonic() + seconds
    with context.Pool(min(cores, 32)) as pool:
        results = pool.imap_unordered(compile_job, jobs())
        for _ in jobs():
            try:
                yield results.next(timeout=max(0.1, deadline - time.monotonic()))
            except multiprocessing.TimeoutError:
                print("FAIL compiling took too long", flush=True)
                return


def _call(kernels: QuackKernels, kind: str, tile: Tile) -> None:
    """On tensors of no device, and of any size."""
    empty = partial(torch.empty, dtype=torch.bfloat16, device="meta")
    x, weight, residual = empty(256, 512), empty(1024, 512), empty(256, 1024)
    rstd = torch.empty(256, dtype=torch.float32, device="meta")
    arguments: dict[str, tuple[Any, ...]] = {
        "add": (x, weight, residual),
        "add_by_store": (x, weight, residual),
        "add_scaled": (x, weight, residual, empty(1024), 1e-6),
        "of_scaled": (x, rstd, weight),
        "gated_of_scaled": (x, rstd, weight),
    }
    getattr(kernels, kind)(tile, *arguments.get(kind, (x, weight)))
