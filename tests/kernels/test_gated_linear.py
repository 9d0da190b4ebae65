"""The feed-forward's first half: what it computes, and when quack's kernel computes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import gated_linear as module
from kernels import quack_gated
from kernels.gated_linear import gated_linear
from kernels.gpu import Gpu
from kernels.half_weight import HalfWeight, has_half_weights
from kernels.quack_gated import QUACK, gated_kernel

H200 = Gpu("NVIDIA H200", 9, 0, 132)
COLUMNS_OF_8B = 24_576


@pytest.fixture(autouse=True)
def quack_is_there(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(quack_gated, "version", lambda package: "0.6.5")
    forget()
    yield
    forget()


def forget() -> None:
    quack_gated._is_there.cache_clear()
    quack_gated.tuned_kernels.cache_clear()
    gated_kernel.cache_clear()


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    gate, up = F.linear(x, weight, bias).chunk(2, dim=-1)
    return F.silu(gate) * up


@pytest.mark.parametrize("with_bias", [False, True])
def test_it_is_silu_of_the_gate_times_the_other(with_bias: bool) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 16), torch.randn(24, 16)
    bias = torch.randn(24) if with_bias else None
    torch.testing.assert_close(gated_linear(x, weight, bias), reference(x, weight, bias))
    if has_half_weights():
        halved = gated_linear(x, HalfWeight(weight), bias)
        torch.testing.assert_close(halved, reference(x, weight, bias), rtol=1e-2, atol=1e-2)


@settings(deadline=None)
@given(rows=st.integers(1, 9000), columns=st.integers(1, 60_000))
def test_what_is_taken_keeps_multiprocessors_busy(rows: int, columns: int) -> None:
    """Counted tile by tile: what their rounds compute is for the most part wanted."""
    kernel = gated_kernel(H200, "bfloat16", rows, columns)
    if kernel is None:
        return
    tiles = sum(1 for _ in range(0, rows, kernel.rows)) * sum(1 for _ in range(0, columns, kernel.columns))
    rounds = -(-tiles // H200.num_sms)
    assert rows * columns >= 0.92 * rounds * H200.num_sms * kernel.rows * kernel.columns


def test_the_8b_takes_it_for_whole_tiles_of_rows() -> None:
    for tiles in range(1, 65):
        assert gated_kernel(H200, "bfloat16", 128 * tiles, COLUMNS_OF_8B) is not None
    for few in (1, 32, 64):
        assert gated_kernel(H200, "bfloat16", few, COLUMNS_OF_8B) is None


def test_where_it_was_not_measured_or_is_not_installed_it_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = (1024, COLUMNS_OF_8B)
    assert gated_kernel(H200, "float16", *size) is not None
    assert gated_kernel(H200, "float32", *size) is None
    assert gated_kernel(Gpu("NVIDIA A100", 8, 0, 108), "bfloat16", *size) is None
    monkeypatch.setattr(quack_gated, "version", lambda package: "0.7.0")
    forget()
    assert gated_kernel(H200, "bfloat16", *size) is None


def test_quack_that_cannot_be_imported_after_all_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "gpu_of", lambda device: H200)
    monkeypatch.setattr(quack_gated, "_epilogue", lambda: None)
    x, weight = torch.randn(128, 8).bfloat16(), torch.randn(COLUMNS_OF_8B, 8).bfloat16()
    torch.testing.assert_close(gated_linear(x, weight), reference(x, weight))


def test_what_may_be_taken_is_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(quack_gated, "find_gpu", lambda: H200)
    monkeypatch.setattr(QUACK, "start_compiling", lambda kernels: started.extend(kernels) or len(kernels))
    assert quack_gated.start_compiling("bfloat16") == 3
    chosen = {gated_kernel(H200, "bfloat16", 128 * tiles, COLUMNS_OF_8B) for tiles in range(1, 9)}
    assert chosen == set(started)
    for gpu in (None, Gpu("NVIDIA A100", 8, 0, 108)):
        monkeypatch.setattr(quack_gated, "find_gpu", lambda gpu=gpu: gpu)
        assert quack_gated.start_compiling("bfloat16") == 0
