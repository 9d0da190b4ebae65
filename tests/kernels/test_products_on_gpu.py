"""Products with the activation or the residual taken along, against fp32, at sizes of real models."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from kernels.gated_linear import gated_linear
from kernels.gpu import gpu_of
from kernels.linear import add_linear
from kernels.quack_gated import GatedKernel, gated_kernel, run_gated

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]

SIZES = {"8B": (4096, 12_288), "0.6B": (1024, 3072), "no whole tiles": (320, 1000)}  # K, I


@pytest.fixture
def hopper() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no Hopper GPU")
    pytest.importorskip("cutlass")
    pytest.importorskip("quack")


def randn(*size: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(size))
    return (torch.randn(*size, device="cuda", generator=generator) * scale).to(dtype)


def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    gate, up = F.linear(x.float(), weight.float()).chunk(2, dim=-1)
    return F.silu(gate) * up


def assert_right(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """As right in each row as rounding the result allows, and a little more."""
    off = (actual.float() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert off.max().item() < 4e-3


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("size", SIZES)
def test_quacks_kernel_for_any_number_of_rows(size: str, dtype: str) -> None:
    k, i = SIZES[size]
    weight = randn(2 * i, k, scale=k**-0.5, dtype=getattr(torch, dtype))
    for num_rows in (1, 64, 127, 128, 129, 640, 1152):
        x = randn(num_rows, k, dtype=weight.dtype)
        expected = reference(x, weight)
        for tile in ((128, 192, 2, 1), (192, 128, 1, 2), (128, 192, 1, 2)):
            actual = run_gated(GatedKernel(*tile, dtype), x, weight)
            assert actual is not None
            assert_right(actual, expected)


@pytest.mark.parametrize("num_rows", [3, 100, 256, 1152, 2048])
def test_the_way_that_is_taken(num_rows: int) -> None:
    k, i = SIZES["8B"]
    x, weight = randn(num_rows, k), randn(2 * i, k, scale=k**-0.5)
    off = (gated_linear(x, weight).float() - reference(x, weight)).norm() / reference(x, weight).norm()
    assert off.item() < 8e-3  # gate and up are rounded in between where quack is not taken


@pytest.mark.usefixtures("hopper")
def test_it_is_captured_in_a_graph() -> None:
    k, i = SIZES["8B"]
    x, weight = randn(1152, k), randn(2 * i, k, scale=k**-0.5)
    gpu = gpu_of(x.device)
    assert gpu is not None
    if gated_kernel(gpu, "bfloat16", len(x), len(weight)) is None:
        pytest.skip("quack is not taken on this GPU")
    gated_linear(x, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gated_linear(x, weight)
    x.copy_(x.flip(0).roll(1, dims=1))
    graph.replay()
    assert_right(out, reference(x, weight))


@pytest.mark.parametrize("num_rows", [1, 100, 1152])
def test_the_residual_is_added_before_the_product_is_rounded(num_rows: int) -> None:
    x, weight = randn(num_rows, 4096), randn(4096, 4096, scale=1 / 64)
    residual = randn(num_rows, 4096, scale=10.0)
    expected = residual.float() + F.linear(x.float(), weight.float())
    assert add_linear(residual, x, weight) is residual
    assert_right(residual, expected)


REAL_CALL = """
import torch
from kernels.quack_gated import QUACK, GatedKernel, run_gated
kernel = GatedKernel(**KERNEL)
assert QUACK.start_compiling([kernel]) == 1
QUACK.wait_until_compiled()
compiled = sorted(QUACK.cache_folder.rglob("*.o"))
assert len(compiled) == 1
x, weight = (torch.ones(size, 512, dtype=torch.bfloat16, device="cuda") for size in (300, 2048))
assert run_gated(kernel, x, weight) is not None
torch.cuda.synchronize()
assert sorted(QUACK.cache_folder.rglob("*.o")) == compiled
"""


@pytest.mark.usefixtures("hopper")
def test_real_calls_find_what_was_compiled_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("QUACK_CACHE_DIR", raising=False)
    code = REAL_CALL.replace("KERNEL)", f"{asdict(GatedKernel(128, 192, 2, 1, 'bfloat16'))})", 1)
    subprocess.run([sys.executable, "-c", code], check=True)
