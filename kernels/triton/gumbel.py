"""The noise of `kernels.sampling.gumbel_noise`, one tile at a time.

The uniform numbers are the same everywhere, to the last bit. Their logarithms are each platform's own, so
the noise of a CPU and of a GPU may differ in the last bits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def noise_key(seed, position):
    """(low, high): the uint32 halves of a row's key. seed and position are int64 scalars."""
    key = _mix64(seed.to(tl.uint64, bitcast=True))
    key = _mix64(key + position.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15)
    return key.to(tl.uint32), (key >> 32).to(tl.uint32)


@triton.jit
def gumbel(token_ids, low, high):
    """Standard Gumbel noise in fp32 of `token_ids` (int32) under a row's key."""
    bits = _mix32((token_ids.to(tl.uint32, bitcast=True) * 0x9E3779B1) ^ low)
    bits = _mix32(bits + high)
    uniform = ((bits >> 9).to(tl.int32).to(tl.float32) + 0.5) * (2.0**-23)
    return -tl.log(-tl.log(uniform))


@triton.jit
def _mix64(x):
    """The finalizer of splitmix64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _mix32(x):
    """lowbias32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)
