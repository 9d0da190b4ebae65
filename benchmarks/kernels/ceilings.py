"""What a GPU gives at best: bytes read a second, and bf16 products for a moment and under a sustained load.

    python -m benchmarks.kernels.ceilings

The floors of docs/performance.md are counted with such figures. Some ten seconds, 5 GB of the GPU's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.kernels.products.measure import quick_ms, sustained_ms
from benchmarks.kernels.small_batch.timing import capture
from kernels.triton.small_batch.gemv import gemv
from kernels.triton.small_batch.tiles import default_linear

READ_SHAPE = (1 << 17, 8192)  # bf16, 2 GiB: far more than any cache holds
SIZES = (4096, 8192, 12_288)  # of square products
LOAD_S = 1.0  # a reading under load: the power cap and the clock settle within that


def reads() -> dict[str, Callable[[], object]]:
    """Kernels that read a weight of READ_SHAPE once and write next to nothing."""
    rows, columns = READ_SHAPE
    weight = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(1, columns, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(1, rows, device="cuda", dtype=torch.bfloat16)
    return {
        "its largest element": weight.max,
        "cuBLAS, one row": partial(torch.mm, x, weight.t()),
        "gemv, one row": partial(gemv, x, weight, out, default_linear(1, rows, columns)),
    }


def products() -> dict[str, Callable[[], object]]:
    operands = {size: torch.randn(2, size, size, device="cuda", dtype=torch.bfloat16) for size in SIZES}
    return {f"{size}": partial(torch.mm, a, b) for size, (a, b) in operands.items()}


@torch.inference_mode()
def main() -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    num_bytes = 2 * READ_SHAPE[0] * READ_SHAPE[1]
    for name, read in reads().items():
        print(f"read, {name}: {num_bytes / quick_ms(capture(read)) / 1e9:.2f} TB/s", flush=True)
    for size, product in products().items():
        graph, teraflops = capture(product), 2 * int(size) ** 3 / 1e9
        quick, sustained = quick_ms(graph), sustained_ms({size: graph}, seconds=LOAD_S)[size]
        print(
            f"product of {size} x {size}: {teraflops / quick:.0f} TFLOP/s for a moment, "
            f"{teraflops / sustained:.0f} under load",
            flush=True,
        )


if __name__ == "__main__":
    main()
