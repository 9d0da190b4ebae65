"""Single products x W^T of the embedded model on one core: `kernels.linear` beside what else torch has.

    python -m benchmarks.cpu.products --rows 1,8,16,128

Prints, for each way and number of rows, milliseconds of the thread's own CPU time for the four shapes of a
layer together and for the head (the median of the repeats, which take turns), and the largest error beside
fp32. Time in which other programs have the core does not count, but the caches that they fill do.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.nn.functional as F

from kernels.half_weight import HalfWeight
from kernels.linear import linear

Product = Callable[[torch.Tensor], torch.Tensor]
LAYER = ((960, 576), (576, 576), (3072, 576), (576, 1536))  # [N, K] of qkv, out, gate and up, down
HEAD = ((49152, 576),)
GROUP = 32  # inputs that share a scale in 4 bits
NUM_PIECES = 32


def octavo(weight: torch.Tensor) -> Product:
    return partial(linear, weight=weight)


def plain(weight: torch.Tensor) -> Product:
    return partial(F.linear, weight=weight)


def half(weight: torch.Tensor) -> Product:
    return HalfWeight(weight).linear


def two_halves(weight: torch.Tensor) -> Product:
    """The rounded weight, and what rounding left."""
    rounded, rest = HalfWeight(weight), HalfWeight(weight - weight.half().float())
    return lambda x: rounded.linear(x).add_(rest.linear(x))


def bfloat16(weight: torch.Tensor) -> Product:
    narrow = weight.bfloat16()
    return lambda x: F.linear(x.bfloat16(), narrow).float()


def transposed(weight: torch.Tensor) -> Product:
    columns = weight.t().contiguous()
    return lambda x: x @ columns


def pieces(weight: torch.Tensor) -> Product:
    """As a batch of products with some of the outputs each."""
    num_outputs, num_inputs = weight.shape
    batch = weight.view(NUM_PIECES, num_outputs // NUM_PIECES, num_inputs).transpose(1, 2)
    return lambda x: torch.matmul(x, batch).transpose(0, 1).reshape(len(x), num_outputs)


def onednn(weight: torch.Tensor) -> Product:
    """Packed once."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def convolution(weight: torch.Tensor) -> Product:
    """oneDNN's of 1 x 1, the rows being pixels."""
    num_outputs, num_inputs = weight.shape
    kernel = weight.view(num_outputs, num_inputs, 1, 1).to_mkldnn()
    packed = torch._C._nn.mkldnn_reorder_conv2d_weight(kernel)

    def convolve(x: torch.Tensor) -> torch.Tensor:
        pixels = x.t().reshape(1, num_inputs, 1, len(x))
        return F.conv2d(pixels.to_mkldnn(), packed).to_dense().view(num_outputs, len(x)).t()

    return convolve


def four_bits(weight: torch.Tensor) -> Product:
    """Q4_1's form: a scale and a smallest value for each group."""
    groups = weight.view(len(weight), -1, GROUP)
    low, high = groups.amin(2), groups.amax(2)
    scale = ((high - low) / 15).clamp_min(1e-9)
    codes = ((groups - low[..., None]) / scale[..., None]).round().clamp(0, 15).int().view_as(weight)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    scales = torch.stack([scale, low + 8 * scale], 2).transpose(0, 1).contiguous()
    return lambda x: torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, GROUP, scales)


def eight_bits(weight: torch.Tensor) -> Product:
    scale = weight.abs().amax(1) / 127
    codes = (weight / scale[:, None]).round().to(torch.int8)
    return lambda x: torch.ops.aten._weight_int8pack_mm(x, codes, scale)


WAYS: dict[str, Callable[[torch.Tensor], Product]] = {
    "kernels.linear": octavo,
    "fp16 weights (kernels.half_weight)": half,
    "F.linear": plain,
    "oneDNN, packed once": onednn,
    "oneDNN, 1 x 1 convolution": convolution,
    "weights transposed": transposed,
    f"{NUM_PIECES} batched pieces": pieces,
    "fp16 in two parts": two_halves,
    "bf16": bfloat16,
    f"4 bits by group of {GROUP}": four_bits,
    "8 bits by row": eight_bits,
}


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", default="1,8,16", help="(default: 1,8,16)")
    parser.add_argument("--repeats", type=int, default=7, help="(default: 7)")
    parser.add_argument("--ways", default="", help="only those whose names hold one of these, by commas")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    wanted = arguments.ways.split(",")
    names = [name for name in WAYS if any(part in name for part in wanted)]
    print("| rows | way | layer, ms | head, ms | largest error |\n| ---: | --- | ---: | ---: | ---: |")
    with torch.inference_mode():
        products = {name: [_prepare(name, shapes) for shapes in (LAYER, HEAD)] for name in names}
        for rows in map(int, arguments.rows.split(",")):
            _measure(products, rows, arguments.repeats)


def _prepare(name: str, shapes: tuple[tuple[int, int], ...]) -> list[tuple[torch.Tensor, Product]]:
    """(weight, product with it) for each shape."""
    weights = [torch.randn(shape) / shape[1] ** 0.5 for shape in shapes]
    return [(weight, WAYS[name](weight)) for weight in weights]


def _measure(products: dict[str, list[list[tuple[torch.Tensor, Product]]]], rows: int, repeats: int) -> None:
    times: dict[str, list[list[float]]] = {name: [[], []] for name in products}
    for _ in range(repeats + 1):
        for name, parts in products.items():
            for part, taken in zip(parts, times[name], strict=True):
                taken.append(sum(_cpu_s(weight, product, rows) for weight, product in part))
    for name, parts in products.items():
        layer, head = (1e3 * median(taken[1:]) for taken in times[name])  # the first one warms up
        error = max(_error(weight, product, rows) for part in parts for weight, product in part)
        print(f"| {rows} | {name} | {layer:.2f} | {head:.1f} | {error:.1e} |", flush=True)


def _cpu_s(weight: torch.Tensor, product: Product, rows: int) -> float:
    x = torch.randn(rows, weight.shape[1])
    begin = time.thread_time()
    product(x)
    return time.thread_time() - begin


def _error(weight: torch.Tensor, product: Product, rows: int) -> float:
    """Of an output, as a share of the largest output."""
    x = torch.randn(rows, weight.shape[1])
    expected = x.double() @ weight.double().t()
    return float((product(x) - expected).abs().max() / expected.abs().max())


if __name__ == "__main__":
    main()
