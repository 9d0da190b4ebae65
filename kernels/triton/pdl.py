"""Programmatic dependent launch (PDL): a kernel starts, and reads its weights, while the one before ends.

With PDL on, every program of a kernel calls `gdc_wait` before it touches what the kernels before it write;
only constants, and what was complete before the first kernel of the chain, may be read earlier. Since a
kernel is complete only once all of its programs have waited, "the kernel before is complete" covers the whole
chain. `TRIGGER` says when the next kernel may start: at once, which pays for kernels of a single wave of
programs, or after the main loop, since waiting programs would take the place of further waves.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import torch
import triton
import triton.language as tl

from kernels.gpu import gpu_of

Trigger = Literal["none", "early", "late"]

NONE = tl.constexpr(0)  # no PDL at all
EARLY = tl.constexpr(1)
LATE = tl.constexpr(2)
ONE_WAVE = 8 * 132
"""About as many programs of a few warps as an H200 runs at once; with more, later ones start late."""
_CODES = {"none": 0, "early": 1, "late": 2}


def trigger_code(trigger: Trigger, device: torch.device) -> int:
    """The kernels' TRIGGER argument; NONE where the device knows no PDL."""
    return _CODES[trigger] if _has_pdl(device) else 0


def launch_options(code: int) -> dict[str, Any]:
    """Keyword arguments of a launch whose kernel waits by itself for those before it."""
    return {"launch_pdl": True} if code else {}


@lru_cache
def _has_pdl(device: torch.device) -> bool:
    gpu = gpu_of(device)
    return gpu is not None and gpu.major >= 9


@triton.jit
def prefetch_to_l2(pointers):
    """Ask for the 128-byte lines at `pointers`, without waiting. Not for the interpreter."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )
