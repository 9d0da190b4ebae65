"""Kernels of a step by what they are there for."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.step_profile.kinds import OTHER, kind_of, time_by_kind

KERNELS = Path(__file__).parents[2] / "kernels" / "triton"


def test_time_adds_up_by_kind() -> None:
    kernels = [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 2.0, 30.0),
        ("_exchange_norm", 128.0, 500.0),
        ("nvjet_sm90_tst_256x64_64x5_4x1_v_bz_TNT", 64.0, 4000.0),
        ("kernel_cutlass_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90", 64.0, 900.0),
        ("_rms_norm_kernel", 129.0, 200.0),
        ("void at::native::vectorized_elementwise_kernel<4, ...>", 1.0, 2.0),
    ]
    assert time_by_kind(kernels) == {
        "products": 4000.0,
        "attention": 900.0,
        "sums over ranks": 530.0,
        "norms": 200.0,
        "other": 2.0,
    }


def test_every_kernel_of_a_layer_has_a_kind() -> None:
    """Those of files that have nothing to do with layers aside: they are few and quick."""
    once = {"decode_rows", "embedding", "gumbel", "restrict", "sample", "token_masks"}
    launched = re.compile(r"(?:^|\W)(\w+)\[")
    for file in KERNELS.rglob("*.py"):
        source = file.read_text()
        names = set(re.findall(r"@triton\.jit(?:\([^)]*\))?\ndef (\w+)", source)) & set(
            launched.findall(source)
        )
        for name in names if file.stem not in once else ():
            assert kind_of(name) != OTHER, name
