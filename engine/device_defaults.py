"""What each kind of device is given where the configuration leaves it open. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceDefaults:
    """Values for the flags of the same names."""

    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    pipeline_depth: int
    itl_target_ms: float


# On a CPU launching a step computes it: a second one in flight would only hold back the first one's tokens.
DEVICE_DEFAULTS = {
    "cpu": DeviceDefaults(
        block_size=16, max_num_seqs=64, max_num_batched_tokens=512, pipeline_depth=1, itl_target_ms=250.0
    ),
    "cuda": DeviceDefaults(
        block_size=128, max_num_seqs=512, max_num_batched_tokens=8192, pipeline_depth=2, itl_target_ms=23.0
    ),
}
