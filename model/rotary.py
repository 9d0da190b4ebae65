"""Rotary position embeddings: the frequencies of each scaling kind, and the table gathered once per step.

Scaling rules: linear (position interpolation, arXiv 2306.15595), YaRN (arXiv 2309.00071) and the rule of
Llama 3.1, with the parameter names and defaults of Hugging Face's `rope_scaling`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn

from kernels.rotary import rotary_rows
from model.config import ModelConfig, RopeScaling


class RotaryRows(NamedTuple):
    """What rotates the rows of one step; the sign of the rotation is folded into `sin`."""

    cos: torch.Tensor  # [T, 1, head_dim]
    sin: torch.Tensor  # [T, 1, head_dim], its first half negated


class RotaryTable(nn.Module):
    """cos and sin of every position the model may see, computed in fp32, handed out in the compute type."""

    table: torch.Tensor

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.dtype = dtype
        inverse_frequencies, factor = rotary_frequencies(config)
        positions = torch.arange(config.num_positions, dtype=torch.float32)
        angles = torch.outer(positions, inverse_frequencies)
        table = torch.cat((angles.cos(), angles.sin()), dim=-1).mul_(factor)
        self.register_buffer("table", table.to(device), persistent=False)

    def forward(self, positions: torch.Tensor) -> RotaryRows:
        return RotaryRows(*rotary_rows(self.table, positions, self.dtype))


def rotary_frequencies(config: ModelConfig) -> tuple[torch.Tensor, float]:
    """Inverse frequencies [head_dim / 2] in fp32, and what cos and sin are multiplied by.

    `dynamic` changes its base with the length of each sequence, which a cache of rotated keys cannot follow.
    Up to the original length it equals the unscaled rule, and that is what is served.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is None or scaling.kind == "dynamic":
        return frequencies, 1.0
    if scaling.kind == "linear":
        return frequencies / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(frequencies, scaling), 1.0
    return _yarn(frequencies, scaling, config.rope_theta), _yarn_attention_factor(scaling)


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Keeps short wavelengths, divides long ones by the factor, and blends linearly in between."""
    rotations = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = ((rotations - scaling.low_freq_factor) / span).clamp(0, 1)
    return keep * frequencies + (1 - keep) * frequencies / scaling.factor


def _yarn(frequencies: torch.Tensor, scaling: RopeScaling, theta: float) -> torch.Tensor:
    """Keeps dimensions that turn over beta_fast times in the original length, interpolates slow ones."""
    half = len(frequencies)

    def dimension_of(rotations: float) -> float:
        wavelength = scaling.original_max_position_embeddings / (rotations * 2 * math.pi)
        return half * math.log(wavelength) / math.log(theta)

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    span = high - low if high != low else 0.001
    interpolate = ((torch.arange(half, dtype=torch.float32) - low) / span).clamp(0, 1)
    return frequencies / scaling.factor * interpolate + frequencies * (1 - interpolate)


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def magnitude(mscale: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * mscale * math.log(scaling.factor) + 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return magnitude(scaling.mscale) / magnitude(scaling.mscale_all_dim)
    return magnitude(1.0)
