"""Where quack's gated product pays: cuBLAS and SiLU beside it, by model and number of rows, under load.

    python -m benchmarks.kernels.products.gated [--out DIR] [--seconds 90]

Prints for each how much of the multiprocessors' time goes to wanted numbers, which is what
`kernels/tuned/gated_linear.json` decides by, and the ratio of the times.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.kernels.products.measure import sustained_ms
from benchmarks.kernels.products.quack_kernels import QuackKernels, Tile
from benchmarks.kernels.small_batch.timing import capture
from kernels.activation import silu_and_mul
from kernels.gpu import gpu_of
from kernels.quack_gated import run_gated, tuned_kernels

MODELS = {  # hidden, intermediate of one rank
    "8B": (4096, 12_288),
    "8B, 2 ranks": (4096, 6144),
    "0.6B": (1024, 3072),
    "32B, 2 ranks": (5120, 12_800),
    "Llama 8B": (4096, 14_336),
}
TILES = (
    Tile(128, 192, 2, 1, pingpong=True),
    Tile(128, 192, 1, 2, pingpong=True),
    Tile(128, 192, 2, 1, pingpong=True, swizzle=4),
    Tile(128, 192, 1, 2, pingpong=True, swizzle=4),
    Tile(128, 192, 1, 2, pingpong=True, swizzle=16),
    Tile(192, 128, 1, 2, pingpong=True),
    Tile(192, 128, 2, 1, pingpong=True),
    Tile(128, 160, 2, 1, pingpong=True),
)
TILED_ROWS = (1152, 384, 640, 1024, 1408, 2048, 4096)
ROWS = (96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 896, 1152, 1408, 1792, 3328)
_WEIGHT_BYTES = 1 << 29  # of all copies, so that none is still in the L2 when its turn comes again


def compare(hidden: int, intermediate: int, num_rows: int) -> dict[str, float]:
    """Microseconds of both ways, and the share of useful work."""
    num_copies = max(2, _WEIGHT_BYTES // (4 * hidden * intermediate))
    shape = (2 * intermediate, hidden)
    weights = [
        torch.randn(shape, device="cuda", dtype=torch.bfloat16) * hidden**-0.5 for _ in range(num_copies)
    ]
    x = torch.randn(num_rows, hidden, device="cuda", dtype=torch.bfloat16)
    gpu = gpu_of(x.device)
    assert gpu is not None
    kernels = tuned_kernels(gpu, "bfloat16")
    useful = {kernel: kernel.useful_share(num_rows, 2 * intermediate, gpu.num_sms) for kernel in kernels}
    kernel = max(useful, key=useful.__getitem__)

    def by_cublas() -> None:
        for weight in weights:
            silu_and_mul(F.linear(x, weight))

    def by_quack() -> None:
        for weight in weights:
            run_gated(kernel, x, weight)

    graphs = {"cublas": capture(by_cublas), "quack": capture(by_quack)}
    us = {name: ms * 1e3 / num_copies for name, ms in sustained_ms(graphs, seconds=0.1).items()}
    return {"useful": useful[kernel], **us, "ratio": us["quack"] / us["cublas"]}


def compare_tiles(num_rows: int) -> dict[str, float]:
    """Microseconds of the 8B's product by tile, `by SWIZZLE` where that is not the usual one."""
    hidden, intermediate = MODELS["8B"]
    weights = [
        torch.randn(2 * intermediate, hidden, device="cuda", dtype=torch.bfloat16) * hidden**-0.5
        for _ in range(3)
    ]
    x = torch.randn(num_rows, hidden, device="cuda", dtype=torch.bfloat16)
    quack = QuackKernels()

    def by(tile: Tile) -> None:
        for weight in weights:
            quack.gated(tile, x, weight)

    graphs = {}
    for tile in TILES:
        try:
            graphs[f"{tile} by {tile.swizzle}"] = capture(partial(by, tile))
        except Exception as error:
            print(f"FAIL {tile}: {error}", flush=True)
    return {name: ms * 1e3 / len(weights) for name, ms in sustained_ms(graphs, seconds=0.1).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--seconds", type=float, default=90.0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + arguments.seconds
    results: list[dict[str, Any]] = []

    def keep(**result: Any) -> None:
        results.append(result)
        arguments.out.joinpath("gated.json").write_text(json.dumps(results, indent=1))

    for num_rows in TILED_ROWS:
        with torch.inference_mode():
            us = compare_tiles(num_rows)
        keep(model="8B", rows=num_rows, tiles=us)
        print(f"{num_rows} rows: {', '.join(f'{k} {v:.1f}' for k, v in us.items())}", flush=True)
    for model, sizes in MODELS.items():
        for num_rows in ROWS:
            if time.monotonic() > deadline:
                print(f"SKIP {model}, {num_rows} rows")
                continue
            with torch.inference_mode():
                result = compare(*sizes, num_rows)
            keep(model=model, rows=num_rows, **result)
            numbers = ", ".join(f"{name} {value:.3f}" for name, value in result.items())
            print(f"{model}, {num_rows} rows: {numbers}", flush=True)


if __name__ == "__main__":
    main()
